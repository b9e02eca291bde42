// What happened, in order, and a way to wait for it: conditions are looked at again after every happening.

export class Log {
  constructor(deadline) {
    this.deadline = deadline;
    this.requests = [];
    this.responses = [];
    this.waiting = new Set();
    this.gone = new AbortController();
  }

  /** Something happened. */
  notify() {
    for (const look of [...this.waiting]) look();
  }

  /** The browser is closed, and with it every connection. */
  leave() {
    this.gone.abort();
  }

  /** Resolves when `holds()` is true, rejects at the deadline. */
  until(holds, what) {
    return new Promise((resolve, reject) => {
      const end = (settle, value) => {
        clearTimeout(timer);
        this.waiting.delete(look);
        settle(value);
      };
      const look = () => holds() && end(resolve);
      const timer = setTimeout(() => end(reject, new Error(`waited ${this.deadline} ms in vain for ${what}`)), this.deadline);
      this.waiting.add(look);
      look();
    });
  }
}
