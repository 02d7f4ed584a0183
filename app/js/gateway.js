// Sends one request at a time to a gateway of services, and gives the text of its answer piece by piece. The request
// has no cookie and no referrer. Reads and changes no page.

/** The request in progress. */
let present = null;

/** Starts a request and ends the one before; gives the status of the answer. */
export async function startRequest(url, method, headers, body) {
  stopRequest();
  const abort = new AbortController();
  const request = { abort, reader: null, decoder: new TextDecoder() };
  present = request;
  const response = await fetch(url, {
    method,
    headers: JSON.parse(headers),
    body,
    signal: abort.signal,
    cache: "no-store",
    credentials: "omit",
    mode: "cors",
    redirect: "error",
    referrerPolicy: "no-referrer",
  });
  request.reader = response.body?.getReader() ?? null;
  return response.status;
}

/** The next text of the answer; nothing after its end. */
export async function nextText() {
  const request = present;
  if (!request?.reader) {
    return undefined;
  }
  const { value, done } = await request.reader.read();
  return done ? undefined : request.decoder.decode(value, { stream: true });
}

/** Ends the request in progress. */
export function stopRequest() {
  present?.abort.abort();
  present = null;
}
