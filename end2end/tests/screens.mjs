// Every screen, at a desk and in a hand, by day and by night: drawn without errors, nothing wider
// than the window, no finding of axe. With BERTH_SCREEN_PICTURES the pictures are in target/screens.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings, painted, widthFindings } from './checks.mjs';
import {
  bearer, boardsFree, inOrg, jobIn, launchBrowser, openPage, ROOT, settled, signIn, signUp, startBarePortal,
  startDemo, waitFor,
} from './harness.mjs';

const SHOTS = join(ROOT, 'target/screens');
const SLICE = 'h100-80gb.1g.10gb';
const HEIGHTS = { 1440: 900, 1024: 768, 390: 844 };
const WIDTHS = (process.env.BERTH_SCREEN_WIDTHS || '1440,390').split(',').map(Number);
/** Pictures of whole pages take longer than their checks. */
const HAS_PICTURES = Boolean(process.env.BERTH_SCREEN_PICTURES);
const SIZES = WIDTHS.map((width) => ({ width, height: HEIGHTS[width] }));

let demo, browser, bare, operator, request, maintenance, harbour, board, webhook, invitation;
const jobs = {};
const reservations = {};
const budgets = [];
const who = {};

async function submit(call, org, body) {
  const job = await call('POST', `/orgs/${org}/jobs`, { offering: SLICE, max_duration_s: 900, ...body });
  return job.id;
}

before(async () => {
  mkdirSync(SHOTS, { recursive: true });
  demo = await startDemo();
  operator = bearer(demo.url, demo.operator.token);
  browser = await launchBrowser();
  bare = await startBarePortal();
  const { organization: org } = demo.tenant;
  const call = bearer(demo.url, demo.tenant.token);
  const digits = (file) => readFileSync(join(ROOT, 'examples/digits', file), 'utf8');
  const files = { 'train.py': digits('train.py'), 'digits.csv': digits('digits.csv') };
  jobs.succeeded = await submit(call, org, { name: 'digits', command: ['python3', 'train.py', '--epochs', '8'], files });
  jobs.failed = await submit(call, org, { name: 'sweep-03', command: ['sh', '-c', 'echo no such data; exit 3'] });
  await jobIn(call, org, jobs.succeeded, ['succeeded']);
  await jobIn(call, org, jobs.failed, ['failed']);
  // It writes as a training does and leaves the processor to the browser.
  const epochs = 'i=0; while i=$((i + 1)); do echo "epoch $i/9000  loss 0.31"; sleep 0.5; done';
  jobs.running = await submit(call, org, { name: 'digits-long', command: ['sh', '-c', epochs] });
  await jobIn(call, org, jobs.running, ['running']);
  // The first holds a slice of one board, so that both whole boards are not free for this one.
  jobs.queued = await submit(call, org, { name: 'big-batch', offering: 'h100-80gb', count: 2, command: ['true'] });
  await waitFor('the queued job to say why', async () =>
    (await call('GET', `/orgs/${org}/jobs/${jobs.queued}`)).reasons.length > 0);
  // Limits that are in nobody's way, a request that waits for its answer, and a plan far ahead.
  const few = { boards_milli: 3_000, running_jobs: 20, spend_per_hour_micros: 12_500_000, weight_milli: 1_500 };
  await operator('PUT', `/operator/orgs/${org}/quota`, { ...few, devices: { [SLICE]: 14 } });
  const ask = { limits: { boards_milli: 8_000, devices: { [SLICE]: 16 } }, reason: 'A sweep over eight boards, until Friday.' };
  request = (await call('POST', `/orgs/${org}/quota-requests`, ask)).id;
  const [node] = (await operator('GET', '/operator/nodes')).items;
  const at = (hours) => new Date(Date.now() + (40 * 24 + hours) * 3_600_000).toISOString();
  const plan = { node: node.id, gpus: [node.gpus[2].uuid], starts_at: at(0), ends_at: at(2), reason: 'driver update' };
  harbour = node.id;
  board = node.gpus[0].uuid;
  maintenance = (await operator('POST', '/operator/reservations', plan)).id;
  // One on a board that no job above needs, which begins at once, and one for tomorrow.
  const reserve = async (name, offering, from, hours) => {
    const [starts_at, ends_at] = [from, from + hours * 3_600_000].map((ms) => new Date(ms).toISOString());
    const quote = await call('POST', `/orgs/${org}/quotes`, { offering, starts_at, ends_at });
    const { items } = await call('POST', `/orgs/${org}/reservations`, { quote: quote.id, name });
    return items[0].id;
  };
  reservations.active = await reserve('morning-watch', 'a30-24gb.2g.12gb', Date.now(), 2);
  reservations.scheduled = await reserve('night-training', 'h100-80gb', Date.now() + 86_400_000, 6);
  await waitFor('the reservation to begin', async () =>
    (await call('GET', `/orgs/${org}/reservations/${reservations.active}`)).state === 'active');
  // Budgets that only tell: one nearly untouched, one that anything exceeds.
  for (const [name, limit_micros] of [['All of the lab', 500_000_000], ['Small change', 1]]) {
    budgets.push((await call('POST', `/orgs/${org}/budgets`, { name, limit_micros })).id);
  }
  // Nobody is at that address: a delivery that waits for its next try is what there is to see.
  const hook = { url: 'https://hooks.example.org/berth', kinds: ['job.*', 'budget.passed'] };
  webhook = (await call('POST', `/orgs/${org}/webhooks`, hook)).id;
  invitation = await call('POST', `/orgs/${org}/invitations`, { email: 'grace.holm@example.org', role: 'member' });
  who.tenant = { url: demo.url, headers: await signIn(demo.url, demo.tenant), slug: demo.tenant.slug };
  who.stranger = { url: demo.url, headers: who.tenant.headers };
  who.operator = { url: demo.url, headers: await signIn(demo.url, demo.operator) };
  const { headers, slug } = await signUp(demo.url);
  who.newcomer = { url: demo.url, headers, slug };
  who.nobody = { url: demo.url };
  who.first = { url: bare.url };
});

after(async () => {
  try {
    const call = bearer(demo.url, demo.tenant.token);
    for (const job of [jobs.queued, jobs.running].filter(Boolean)) {
      await call('POST', `/orgs/${demo.tenant.organization}/jobs/${job}/cancel`);
    }
    for (const one of Object.values(reservations)) {
      await call('POST', `/orgs/${demo.tenant.organization}/reservations/${one}/cancel`);
    }
    for (const one of budgets) await call('DELETE', `/orgs/${demo.tenant.organization}/budgets/${one}`);
    if (webhook) await call('DELETE', `/orgs/${demo.tenant.organization}/webhooks/${webhook}`);
    if (invitation) await call('DELETE', `/orgs/${demo.tenant.organization}/invitations/${invitation.invitation.id}`);
    if (maintenance) await operator('POST', `/operator/reservations/${maintenance}/cancel`);
    if (request) await operator('POST', `/operator/quota-requests/${request}`, { grant: false, note: 'Only for pictures.' });
    await operator('DELETE', `/operator/orgs/${demo.tenant.organization}/quota`);
    await boardsFree(operator);
  } finally {
    await browser?.close();
    await bare?.stop();
    await demo?.stop();
  }
});

// Name of the picture, who looks, and the path; a function where the path has an id in it. The path of somebody of an
// organization is of a page of it.
const SCREENS = [
  ['setup', 'first', '/setup'],
  ['start', 'nobody', '/'],
  ['sign-in', 'nobody', '/sign-in'],
  ['sign-up', 'nobody', '/sign-up'],
  ['forgot', 'nobody', '/forgot'],
  ['reset', 'nobody', '/reset#secret'],
  ['verify', 'nobody', '/verify#secret'],
  ['not-found', 'nobody', '/no/such/page'],
  ['org-not-found', 'stranger', '/orgs/no-such-organization/jobs'],
  ['second-factors', 'stranger', '/account/second-factors'],
  ['home', 'tenant', ''],
  ['home-empty', 'newcomer', ''],
  ['launch', 'tenant', '/launch'],
  ['jobs', 'tenant', '/jobs'],
  ['jobs-empty', 'newcomer', '/jobs'],
  ['job-running', 'tenant', () => `/jobs/${jobs.running}`],
  ['job-queued', 'tenant', () => `/jobs/${jobs.queued}`],
  ['job-succeeded', 'tenant', () => `/jobs/${jobs.succeeded}`],
  ['job-failed', 'tenant', () => `/jobs/${jobs.failed}`],
  ['compare', 'tenant', () => `/jobs/compare?job=${jobs.succeeded}&job=${jobs.running}&job=${jobs.failed}&job=${jobs.queued}`],
  ['compare-empty', 'newcomer', '/jobs/compare'],
  ['reservations', 'tenant', '/reservations'],
  ['reservations-empty', 'newcomer', '/reservations'],
  ['reservation-active', 'tenant', () => `/reservations/${reservations.active}`],
  ['reservation-scheduled', 'tenant', () => `/reservations/${reservations.scheduled}`],
  ['launch-inside', 'tenant', () => `/launch?reservation=${reservations.active}`],
  ['cluster', 'tenant', '/cluster'],
  ['cluster-use', 'tenant', '/cluster?colour=use'],
  ['cluster-table', 'tenant', '/cluster?view=table'],
  ['billing', 'tenant', '/billing'],
  ['billing-empty', 'newcomer', '/billing'],
  ['usage', 'tenant', '/usage?group=offering'],
  ['usage-empty', 'newcomer', '/usage'],
  ['budgets', 'tenant', '/budgets'],
  ['budgets-empty', 'newcomer', '/budgets'],
  ['invoices-empty', 'newcomer', '/invoices'],
  ['statement', 'tenant', () => `/statements/${new Date().toISOString().slice(0, 7)}`],
  ['limits', 'tenant', '/limits'],
  ['limits-empty', 'newcomer', '/limits'],
  ['team', 'tenant', '/team'],
  ['team-alone', 'newcomer', '/team'],
  ['join', 'nobody', () => `/join#${invitation.link.split('#')[1]}`],
  ['secrets-empty', 'newcomer', '/secrets'],
  ['services-empty', 'newcomer', '/services'],
  ['service-new', 'tenant', '/services/new'],
  ['inference-keys-empty', 'newcomer', '/inference-keys'],
  ['volumes-empty', 'newcomer', '/volumes'],
  ['tokens', 'tenant', '/tokens'],
  ['webhooks', 'tenant', '/webhooks'],
  ['account', 'stranger', '/account'],
  ['webhooks-empty', 'newcomer', '/webhooks'],
  ['operator-overview', 'operator', '/operator'],
  ['operator-nodes', 'operator', '/operator/nodes'],
  ['operator-boards', 'operator', () => `/operator/nodes/${harbour}`],
  ['operator-board', 'operator', () => `/operator/nodes/${harbour}/boards/${board}`],
  ['operator-fleet', 'operator', '/operator/fleet'],
  ['operator-jobs', 'operator', '/operator/jobs'],
  ['operator-stuck', 'operator', '/operator/stuck'],
  ['operator-gateways', 'operator', '/operator/gateways'],
  ['operator-host-names', 'operator', '/operator/host-names'],
  ['operator-system', 'operator', '/operator/system'],
  ['operator-prices', 'operator', '/operator/prices'],
  ['operator-token-prices', 'operator', '/operator/token-prices'],
  ['operator-promises', 'operator', '/operator/promises'],
  ['operator-orgs', 'operator', '/operator/orgs'],
  ['operator-orgs-none', 'operator', '/operator/orgs?name=nobody'],
  ['operator-invoices', 'operator', '/operator/invoices'],
  ['operator-books', 'operator', '/operator/books'],
  ['operator-limits', 'operator', '/operator/limits'],
  ['operator-org-limits', 'operator', () => `/operator/limits/${demo.tenant.organization}`],
  ['operator-reservations', 'operator', '/operator/reservations'],
  ['operator-people', 'operator', '/operator/people'],
  ['operator-operators', 'operator', '/operator/operators'],
  ['operator-audit', 'operator', '/operator/audit'],
  ['operator-changes', 'operator', '/operator/changes'],
  ['operator-settings', 'operator', '/operator/settings'],
  ['operator-gallery', 'operator', '/operator/gallery'],
  ['docs', 'operator', '/docs'],
  ['docs-volumes', 'operator', '/docs/volumes'],
];

/** Faults of the page in its present colours, in words. At night only colours differ from the day. */
async function wrongs(page, colorScheme) {
  if (colorScheme === 'dark') return axeFindings(page, ['color-contrast']);
  // On a phone a state stands in a corner of its row, where nothing else may be written.
  const covered = await page.evaluate(() => {
    const boxes = (element) => {
      const range = document.createRange();
      range.selectNodeContents(element);
      return [...range.getClientRects()].filter((box) => box.width > 0);
    };
    const meets = (a, b) => a.left < b.right && b.left < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
    return [...document.querySelectorAll('tbody > tr > .table__state')].flatMap((state) => {
      const others = [...state.parentElement.children].filter((cell) => cell !== state).flatMap(boxes);
      return boxes(state).some((box) => others.some((other) => meets(box, other))) ? [`written over: ${state.textContent}`] : [];
    });
  });
  return [...(await widthFindings(page)), ...covered, ...(await axeFindings(page))];
}

for (const [name, role, where] of SCREENS) {
  test(`${name} holds at both widths, by day and by night`, async () => {
    const found = [];
    for (const viewport of SIZES) {
      const { width } = viewport;
      const { url, headers, slug } = who[role];
      const { page, faults, close } = await openPage(browser, url, { headers, viewport, colorScheme: 'light' });
      try {
        const path = typeof where === 'function' ? where() : where;
        await page.goto(slug ? inOrg(slug, path) : path);
        await settled(page);
        // A live page is looked at with something in it.
        if (name === 'job-running') await page.waitForTimeout(2_500);
        if (name.startsWith('reservations')) await page.getByText(/Price valid for/).waitFor();
        for (const colorScheme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme });
          if (HAS_PICTURES) {
            await painted(page);
            await page.screenshot({ path: join(SHOTS, `${name}-${width}-${colorScheme}.png`), fullPage: true });
          }
          found.push(...(await wrongs(page, colorScheme)).map((text) => `${width} ${colorScheme}: ${text}`));
        }
      } catch (error) {
        found.push(`${width}: ${error.message}`);
      } finally {
        await close();
      }
      const expected = (fault) => name.endsWith('not-found') && fault.includes('404');
      found.push(...faults.filter((fault) => !expected(fault)).map((text) => `${width}: ${text}`));
    }
    assert.deepEqual(found, []);
  });
}
