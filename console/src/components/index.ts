/** The shared components; see ../../README.md. */
export * from "./basics";
export * from "./dialog";
export * from "./icons";
export * from "./json";
export * from "./keys";
export * from "./modules";
export * from "./numbers";
export * from "./search";
export * from "./new_rows";
export * from "./sheet_table";
export * from "./spell";
export * from "./status";
export * from "./table";
export * from "./toast";
export * from "./url";
export * from "./waits";
