/** Parts of the console that are loaded when they are needed. */
/** A script or the styles of a part did not arrive, or are those of another version of the console. */
export class MissingModule extends Error {
  constructor(cause: unknown) {
    super("a part of the console cannot be loaded", { cause });
    this.name = "MissingModule";
  }
}

/**
 * Load a module. Throws MissingModule whatever the browser calls the failure: a script that is not found, that is not
 * whole, that lacks an export which another one imports, or that is empty.
 */
export async function loadModule<T extends object>(load: () => Promise<T>, name: keyof T): Promise<T> {
  const module = await load().catch((error: unknown) => {
    throw new MissingModule(error);
  });
  if (module[name] === undefined) throw new MissingModule(`it has no ${String(name)}`);
  return module;
}
