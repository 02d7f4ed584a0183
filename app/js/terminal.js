// A terminal in a running job: xterm.js on one side, the portal's socket on the other.
//
// Knows no page. What is shown comes as bytes and is never markup. The portal's policy allows no style
// element and no style attribute, so what xterm.js puts there goes into a constructed sheet and the CSSOM.

const PROTOCOL = "berth.terminal.v1";
const TICKET = "berth.ticket.";
// As the portal counts: bytes that either side sends beyond what the other has taken.
const WINDOW = 256 * 1024;
const PIECE = 16 * 1024;
// The most columns and rows that the portal accepts.
const MOST = 1000;
const TELL_EVERY = 32 * 1024;
// Between tries to come back, and for how long the shell waits.
const PAUSES_MS = [250, 500, 1000, 2000];
const PATIENCE_MS = 60_000;
const FONT_PX = 13;
const ANSI = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

let loading = null;

function load() {
  const beside = (name) => new URL(`../../../${name}`, import.meta.url).href;
  loading ??= import(beside("xterm.js")).then(
    (module) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = beside("xterm.css");
      document.head.append(link);
      // Its bundle says its name to whoever loads it without a loader.
      return module.Terminal ?? module.default?.Terminal ?? globalThis.Terminal;
    },
    (error) => {
      loading = null;
      throw error;
    },
  );
  return loading;
}

/** Stands in for a style element: its text becomes a constructed sheet. */
function sheetElement(create) {
  const element = create("i");
  element.hidden = true;
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const remove = element.remove.bind(element);
  Object.defineProperties(element, {
    textContent: { set: (text) => sheet.replaceSync(text ?? ""), get: () => "" },
    remove: {
      value: () => {
        document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
        remove();
      },
    },
  });
  return element;
}

/** The page's document, except that what is made by it keeps to the portal's policy. */
function strictDocument() {
  const create = (name, options) => {
    if (String(name).toLowerCase() === "style") {
      return sheetElement(document.createElement.bind(document));
    }
    const element = document.createElement(name, options);
    const set = element.setAttribute.bind(element);
    element.setAttribute = (key, value) => {
      if (key === "style") {
        element.style.cssText = value;
      } else {
        set(key, value);
      }
    };
    return element;
  };
  return new Proxy(document, {
    get: (target, key) => {
      if (key === "createElement") {
        return create;
      }
      const value = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
  });
}

function theme(host) {
  const style = getComputedStyle(host);
  const colour = (name) => style.getPropertyValue(name).trim() || undefined;
  const colours = {
    background: colour("--surface-raised"),
    foreground: colour("--text"),
    cursor: colour("--accent"),
    cursorAccent: colour("--surface-raised"),
    selectionBackground: colour("--accent-soft"),
  };
  for (const name of ANSI) {
    colours[name] = colour(`--ansi-${name}`);
    colours[`bright${name[0].toUpperCase()}${name.slice(1)}`] = colour(`--ansi-${name}`);
  }
  return colours;
}

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", accept: "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(answer.detail ?? "The portal sent an invalid response.");
    error.final = response.status < 500 && response.status !== 429;
    throw error;
  }
  return answer;
}

export class LiveTerminal {
  /** `path` is the address of the job's terminals; `notify` hears the state and a sentence. */
  constructor(host, path, rank, notify) {
    Object.assign(this, { host, path, rank, notify });
    Object.assign(this, { term: null, id: null, socket: null, over: false, started: false, opened: false });
    // Places: what was shown, counted from the shell's start; and what of this socket was shown and told.
    Object.assign(this, { place: null, shown: 0, told: 0, sent: 0, taken: 0, queue: [], lostAt: 0, tries: 0 });
    this.start();
  }

  async start() {
    this.say("connecting", "");
    try {
      const Terminal = await load();
      if (this.over) {
        return;
      }
      this.term = new Terminal({
        cols: 80,
        rows: 24,
        fontSize: FONT_PX,
        fontFamily: getComputedStyle(this.host).fontFamily,
        scrollback: 5000,
        theme: theme(this.host),
        screenReaderMode: true,
        documentOverride: strictDocument(),
      });
      this.term.open(this.host);
      this.term.onData((text) => this.type(new TextEncoder().encode(text)));
      this.term.onBinary((text) => this.type(Uint8Array.from(text, (c) => c.charCodeAt(0) & 255)));
      this.term.onResize(({ cols, rows }) => this.tell({ type: "size", cols, rows }));
      // Tab goes to the shell; this is the way out for whoever has no pointer.
      this.term.attachCustomKeyEventHandler((event) => {
        const leaves = event.ctrlKey && event.shiftKey && event.key === "ArrowUp";
        if (leaves && event.type === "keydown") {
          this.term.blur();
          this.host.closest("section")?.querySelector("button:not([hidden])")?.focus();
        }
        return !leaves;
      });
      this.watch();
      this.fit();
      const opened = await post(this.path, { rank: this.rank });
      this.id = opened.terminal.id;
      if (this.over) {
        return;
      }
      this.connect(opened.ticket);
    } catch (error) {
      this.finish(error.message);
    }
  }

  watch() {
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.host);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => {
      this.term.options.theme = theme(this.host);
    };
    this.dark.addEventListener("change", this.recolour);
    this.themes = new MutationObserver(this.recolour);
    this.themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  }

  /** As many columns and lines as there is room for. */
  fit() {
    const screen = this.host.querySelector(".xterm-screen");
    if (!screen || !this.term || screen.clientWidth === 0) {
      return;
    }
    const style = getComputedStyle(this.host);
    const inner = (length, before, after) => length - parseFloat(before) - parseFloat(after);
    const wide = inner(this.host.clientWidth, style.paddingLeft, style.paddingRight);
    const high = inner(this.host.clientHeight, style.paddingTop, style.paddingBottom);
    const cols = Math.min(MOST, Math.max(20, Math.floor(wide / (screen.clientWidth / this.term.cols))));
    const rows = Math.min(MOST, Math.max(5, Math.floor(high / (screen.clientHeight / this.term.rows))));
    if (Number.isFinite(cols) && Number.isFinite(rows) && (cols !== this.term.cols || rows !== this.term.rows)) {
      this.term.resize(cols, rows);
    }
  }

  connect(ticket) {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const from = this.place === null ? "" : `&from=${this.place}`;
    const { cols, rows } = this.term;
    const url = `${scheme}://${location.host}${this.path}/${this.id}/socket?cols=${cols}&rows=${rows}${from}`;
    const socket = new WebSocket(url, [PROTOCOL, TICKET + ticket]);
    socket.binaryType = "arraybuffer";
    Object.assign(this, { socket, shown: 0, told: 0, sent: 0, taken: 0, opened: false });
    socket.onmessage = ({ data }) => {
      if (this.socket === socket) {
        if (typeof data === "string") {
          this.hear(JSON.parse(data));
        } else {
          this.show(new Uint8Array(data), socket);
        }
      }
    };
    socket.onclose = () => {
      if (this.socket === socket) {
        this.socket = null;
        this.lost();
      }
    };
  }

  show(bytes, socket) {
    this.place += bytes.length;
    // Told when it is shown: what waits for that is bounded by the window.
    this.term.write(bytes, () => {
      if (this.socket === socket) {
        this.shown += bytes.length;
        if (this.shown - this.told >= TELL_EVERY) {
          this.told = this.shown;
          this.tell({ type: "taken", bytes: this.shown });
        }
      }
    });
  }

  hear(news) {
    if (news.type === "open") {
      if (this.place !== null && news.begins > this.place) {
        this.term.write(`\r\n\x1b[2m[${news.begins - this.place} bytes were lost meanwhile]\x1b[0m\r\n`);
      }
      this.place = news.begins;
      Object.assign(this, { opened: true, lostAt: 0, tries: 0 });
      this.say("live", "");
      if (!this.started) {
        this.started = true;
        this.term.focus();
      }
      this.fit();
      this.tell({ type: "size", cols: this.term.cols, rows: this.term.rows });
      this.flush();
    } else if (news.type === "taken") {
      this.taken = Math.max(this.taken, news.bytes);
      this.flush();
    } else if (news.type === "closed" && news.cause !== "away") {
      const code = Number.isInteger(news.exit_code) ? ` Exit code ${news.exit_code}.` : "";
      this.finish(`${news.detail}${code}`);
    }
  }

  tell(word) {
    if (this.opened && this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(word));
    }
  }

  type(bytes) {
    for (let at = 0; at < bytes.length; at += PIECE) {
      this.queue.push(bytes.subarray(at, at + PIECE));
    }
    this.flush();
  }

  flush() {
    while (
      this.opened &&
      this.socket?.readyState === WebSocket.OPEN &&
      this.queue.length > 0 &&
      this.sent - this.taken + this.queue[0].length <= WINDOW
    ) {
      const piece = this.queue.shift();
      this.sent += piece.length;
      this.socket.send(piece);
    }
  }

  /** Comes back to the same shell while it waits. */
  lost() {
    if (this.over) {
      return;
    }
    this.lostAt ||= Date.now();
    if (Date.now() - this.lostAt > PATIENCE_MS) {
      this.finish("Connection lost for too long. The shell was ended.");
      return;
    }
    this.say("lost", "Connection interrupted, retrying. The shell keeps running for one minute.");
    const pause = PAUSES_MS[Math.min(this.tries, PAUSES_MS.length - 1)];
    this.tries += 1;
    this.timer = setTimeout(async () => {
      try {
        const { ticket } = await post(`${this.path}/${this.id}/tickets`, {});
        if (!this.over) {
          this.connect(ticket);
        }
      } catch (error) {
        if (error.final) {
          this.finish(error.message);
        } else {
          this.lost();
        }
      }
    }, pause);
  }

  finish(detail) {
    if (this.over) {
      return;
    }
    this.over = true;
    if (this.term) {
      this.term.options.disableStdin = true;
      this.term.options.cursorBlink = false;
    }
    this.say("ended", detail);
  }

  say(state, detail) {
    this.notify(state, detail);
  }

  /** Ends the shell; its exit code comes as its last word. */
  end() {
    this.tell({ type: "end" });
  }

  /** Leaves the page: nobody will come back, so the shell need not wait. */
  destroy() {
    this.end();
    this.over = true;
    this.notify = () => {};
    clearTimeout(this.timer);
    this.sizes?.disconnect();
    this.themes?.disconnect();
    this.dark?.removeEventListener("change", this.recolour);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.term?.dispose();
  }
}
