/** Light or dark: the system's choice, until the person makes another. */
const STORED = "dragoman.theme";
export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function currentTheme(): Theme {
  const stored = localStorage.getItem(STORED);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function applyTheme(theme: Theme = currentTheme()): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  if (theme === "system") localStorage.removeItem(STORED);
  else localStorage.setItem(STORED, theme);
}
