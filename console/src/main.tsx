import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";
import { CONSOLE_PATH } from "./api/base";
import { HubError } from "./api/client";
import { SessionGate } from "./api/session";
import { App } from "./shell/app";
import { keepFocus } from "./shell/focus";
import { SCREENS, screenOf } from "./shell/screens";
import { SignInAgain, SignInPage } from "./shell/sign_in";
import { applyTheme } from "./shell/theme";
import "./tokens.css";
import "./base.css";
import "./components/components.css";
import "./shell/shell.css";

applyTheme();
keepFocus();
// The screen of the address is loaded while the sign-in is looked at.
(screenOf(location.pathname.slice(CONSOLE_PATH.length)) ?? SCREENS[0])?.preload().catch(() => undefined); // it is tried again when it is shown

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // Events tell what has changed; nothing is polled, and a focus of the window asks for nothing.
      staleTime: 5_000,
      refetchOnWindowFocus: false,
      networkMode: "always", // a hub on this machine answers without a network
      retry: (failures, error) => failures < 2 && error instanceof HubError && (error.status === 0 || error.status >= 500),
    },
  },
});

createRoot(document.getElementById("root")!).render(
  <QueryClientProvider client={queries}>
    <Router base={CONSOLE_PATH}>
      <SessionGate
        loading={null}
        fallback={(signIn, error) => <SignInPage key={error?.code} signIn={signIn} error={error} />}
        again={(signIn, error) => <SignInAgain signIn={signIn} error={error} />}
      >
        <App />
      </SessionGate>
    </Router>
  </QueryClientProvider>,
);
