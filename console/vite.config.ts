import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const HUB = process.env["DRAGOMAN_HUB"] ?? "http://127.0.0.1:8000";

export default defineConfig({
  // Relative: the page is served at every depth below /console/, and the hub may be behind a proxy's prefix.
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../src/dragoman/server/console/static",
    emptyOutDir: true,
    target: "es2022",
    manifest: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 2048,
    reportCompressedSize: false,
  },
  server: { proxy: { "/api": HUB } },
});
