// A stand-in for Stripe that keeps state, for the browser tests: customers, a page on which a person
// pays, saved cards, and Stripe's own page with receipts. It keeps idempotency keys and signs its events
// as Stripe does.
import { createHmac } from 'node:crypto';
import { createServer } from 'node:http';

const KEY = 'sk_test_standin';
const SECRET = 'whsec_standin';

/** `$25.00` for 2500: the smallest units of a currency with two decimals. */
const amountText = (minor) => `$${Math.trunc(minor / 100)}.${`${minor % 100}`.padStart(2, '0')}`;

const escaped = (text) =>
  text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

const html = (title, body) => `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>${escaped(title)}</title><link rel="icon" href="data:,"></head>
<body><main><h1>${escaped(title)}</h1>${body}</main></body>
</html>`;

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}

/**
 * Starts the stand-in. `settings` are what a portal needs to take it for Stripe; `tells(url)` says which
 * portal hears its events; `told` are the portal's answers to them; `decline(true)` refuses saved cards.
 */
export async function startStripe() {
  const answers = new Map();
  const sessions = new Map();
  const told = [];
  const requests = [];
  let [base, portal, declining, events, intents] = ['', '', false, 0, 0];

  const makers = {
    '/v1/customers': (form) => ({ id: `cus_${form.get('metadata[org]')}`, object: 'customer' }),
    '/v1/checkout/sessions': (form) => {
      const id = `cs_${sessions.size + 1}`;
      const session = {
        id, object: 'checkout.session', url: `${base}/pay/${id}`, payment_status: 'unpaid', status: 'open',
        amount_total: Number(form.get('line_items[0][price_data][unit_amount]')),
        currency: form.get('line_items[0][price_data][currency]'), customer: form.get('customer'),
        metadata: { payment: form.get('metadata[payment]') },
      };
      sessions.set(id, {
        session,
        what: form.get('line_items[0][price_data][product_data][name]'),
        setup: form.get('payment_intent_data[setup_future_usage]'),
        success: form.get('success_url'),
        cancel: form.get('cancel_url'),
      });
      return { ...session };
    },
    '/v1/payment_intents': (form) => ({
      id: `pi_saved_${(intents += 1)}`, object: 'payment_intent', status: 'succeeded',
      amount: Number(form.get('amount')), metadata: { payment: form.get('metadata[payment]') },
      payment_method: form.get('payment_method'),
    }),
    '/v1/billing_portal/sessions': (form) => {
      const back = encodeURIComponent(form.get('return_url'));
      return { id: 'bps_1', object: 'billing_portal.session', url: `${base}/receipts?back=${back}` };
    },
  };

  /** An event as Stripe would send it. */
  function event(type, object) {
    const created = Math.trunc(Date.now() / 1_000);
    const body = JSON.stringify({ id: `evt_${(events += 1)}`, object: 'event', type, created, data: { object } });
    const signature = createHmac('sha256', SECRET).update(`${created}.${body}`).digest('hex');
    return { body, signature: `t=${created},v1=${signature}` };
  }

  async function send({ body, signature }) {
    const answer = await fetch(`${portal}/api/v1/stripe/events`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'stripe-signature': signature },
      body,
    });
    told.push(answer.status);
  }

  /** A person pressed Pay: what was paid is told in the wrong order, and one of it twice. */
  async function pay(id) {
    const { session, setup } = sessions.get(id);
    const intent = {
      id: `pi_${id}`, object: 'payment_intent', status: 'succeeded', amount: session.amount_total,
      metadata: session.metadata, payment_method: 'pm_card', setup_future_usage: setup,
    };
    Object.assign(session, { payment_status: 'paid', status: 'complete', payment_intent: intent.id });
    const succeeded = event('payment_intent.succeeded', intent);
    await send(succeeded);
    await send(event('checkout.session.completed', session));
    await send(succeeded);
  }

  function call(path, headers, form) {
    if (headers.authorization !== `Bearer ${KEY}`) return [401, { error: { message: 'No such key' } }];
    const make = makers[path];
    const key = headers['idempotency-key'];
    if (!make || !key) return [400, { error: { message: `This stand-in does not know ${path}` } }];
    if (declining && path === '/v1/payment_intents') return [402, { error: { message: 'Your card was declined.' } }];
    if (!answers.has(key)) answers.set(key, make(form));
    return [200, answers.get(key)];
  }

  function page(path, query) {
    if (path === '/receipts') {
      return html('Receipts', `<p><a href="${escaped(query.get('back'))}">Return</a></p>`);
    }
    const found = sessions.get(/^\/pay\/(cs_\d+)$/.exec(path)?.[1]);
    if (!found) return null;
    const { session, what, cancel } = found;
    return html(what, `<p>${amountText(session.amount_total)}</p>
<form method="post"><button>Pay</button></form>
<p><a href="${escaped(cancel)}">Back</a></p>`);
  }

  const server = createServer(async (request, response) => {
    const url = new URL(request.url, base);
    const answer = (status, type, text, headers = {}) =>
      response.writeHead(status, { 'content-type': type, ...headers }).end(text);
    try {
      const body = await bodyOf(request);
      if (url.pathname.startsWith('/v1/') && request.method === 'POST') {
        requests.push(url.pathname);
        const [status, value] = call(url.pathname, request.headers, new URLSearchParams(body));
        return answer(status, 'application/json', JSON.stringify(value));
      }
      const id = /^\/pay\/(cs_\d+)$/.exec(url.pathname)?.[1];
      if (request.method === 'POST' && sessions.has(id)) {
        await pay(id);
        return answer(303, 'text/plain', '', { location: sessions.get(id).success });
      }
      const text = page(url.pathname, url.searchParams);
      return text ? answer(200, 'text/html; charset=utf-8', text) : answer(404, 'text/plain', 'nothing here');
    } catch (error) {
      return answer(500, 'text/plain', `${error.stack}`);
    }
  });
  await new Promise((done, failed) => server.on('error', failed).listen(0, '127.0.0.1', done));
  base = `http://127.0.0.1:${server.address().port}`;

  return {
    url: base,
    settings: { BERTH_STRIPE_KEY: KEY, BERTH_STRIPE_URL: base, BERTH_STRIPE_WEBHOOK_SECRETS: SECRET },
    tells: (to) => (portal = to),
    decline: (now) => (declining = now),
    told,
    requests,
    stop: () =>
      new Promise((done) => {
        server.close(done);
        server.closeAllConnections();
      }),
  };
}
