// The places for live streams of one browser. Over HTTP/1.1 a browser has six connections for all windows of a portal,
// and each stream takes one for as long as it is open; two stay for requests. The window with the focus comes first.

const PLACES = 4;
/** The places of this window. */
const own = new Set();
/** The questions and places of this window. */
let asked = 0;
/** True from the load or the focus of this window until another one needs its places. */
let comesFirst = true;
globalThis.addEventListener?.("focus", () => {
  comesFirst = true;
});

/** True if the streams of this browser need places. Pages without a secure context have none to share. */
export function needsPlaces() {
  const [load] = performance.getEntriesByType("navigation");
  return load?.nextHopProtocol === "http/1.1" && navigator.locks !== undefined;
}

/** Asks for a place. Calls `granted` with it, and `lost` when another window gets it. Returns the way to give it back. */
export function askForPlace(granted, lost) {
  let release;
  const held = new Promise((resolve) => {
    release = resolve;
  });
  let given = false;
  let over = false;
  const ask = async (place, options) => {
    let has = false;
    try {
      await navigator.locks.request(`berth-stream-${place}`, options, (lock) => {
        if (lock === null || over) {
          return undefined;
        }
        has = given = true;
        own.add(place);
        granted();
        return held;
      });
    } catch {
      // Another window has the place now, or this one is going.
    }
    if (has || options.steal) {
      own.delete(place);
    }
    if (has && !over) {
      comesFirst = false;
      lost();
    }
  };
  // The first stream of a window has its state, in a low place. Windows lose high places first.
  const order = [...Array(PLACES).keys()];
  if (asked > 0) {
    order.reverse();
  }
  asked += 1;
  (async () => {
    for (const place of order) {
      if (given || over) {
        break;
      }
      await ask(place, { ifAvailable: true });
    }
    const other = [...Array(PLACES).keys()].reverse().find((place) => !own.has(place));
    if (!given && !over && comesFirst && other !== undefined) {
      // No other stream of this window takes the same one.
      own.add(other);
      await ask(other, { steal: true });
    }
  })();
  return () => {
    if (!over) {
      asked -= 1;
    }
    over = true;
    release();
  };
}
