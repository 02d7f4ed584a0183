// Services as people run them: created by the form, tried on their page, scaled, replaced, rolled back, stopped and
// deleted; the keys of their callers, and the gateways of the operator.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, cutFindings, widthFindings } from './checks.mjs';
import {
  bearer, boardsFree, chooseOffering, inOrg, launchBrowser, openPage, settled, signIn, signUp, startDemo, waitFor,
} from './harness.mjs';

const SLICE = 'h100-80gb.1g.10gb';
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const READY_MS = 120_000;

/** A server that answers with its word and the path. */
const server = (word) => `#!/usr/bin/env python3
import http.server, os

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("${word} " + self.path).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

address = ("127.0.0.1", int(os.environ["PORT"]))
http.server.ThreadingHTTPServer(address, Answer).serve_forever()
`;

let demo, browser, operator, owner, view, page, service, ebb;

before(async () => {
  demo = await startDemo();
  browser = await launchBrowser();
  operator = bearer(demo.url, demo.operator.token);
  owner = await signUp(demo.url);
  await operator('POST', `/operator/orgs/${owner.org}/credits`, { amount_micros: 200_000_000, memo: 'Welcome' });
  await waitFor('a gateway', async () => {
    const { items } = await owner.api('GET', `/orgs/${owner.org}/service-gateways`);
    return items.some((gateway) => gateway.url);
  }, 60_000);
  view = await openPage(browser, demo.url, { headers: owner.headers, viewport: SIZES[0] });
  page = view.page;
});
after(async () => {
  try {
    const { items } = await owner.api('GET', `/orgs/${owner.org}/services`);
    for (const one of items) await owner.api('DELETE', `/orgs/${owner.org}/services/${one.id}`);
    await boardsFree(operator);
  } finally {
    await browser?.close();
    await demo?.stop();
  }
});

const services = (rest = '') => `/orgs/${owner.org}/services${rest}`;
const awake = (button) => button.and(page.locator(':enabled')).waitFor();
const button = (name) => page.getByRole('button', { name, exact: true });
const dialog = (name) => page.getByRole('dialog', { name });

/** Forgets refusals with these statuses, which are faults of the console only. There is no other fault. */
function forgetRefusals(...statuses) {
  const isRefusal = (fault) => statuses.some((status) => fault.includes(`status of ${status}`));
  assert.deepEqual(view.faults.splice(0).filter((fault) => !isRefusal(fault)), []);
}

/** The service once `found` holds. */
const serviceWhen = (what, found) => waitFor(what, async () => {
  const now = await owner.api('GET', services(`/${service}`));
  return found(now) && now;
}, READY_MS);

/** Opens the page of the service as a whole. */
async function openService() {
  await page.goto(inOrg(owner.slug, `/services/${service}`));
  await settled(page);
  await awake(button('Send request'));
}

/** Sends a GET with a fresh key; gives the answer on the page. */
async function answerOf(path) {
  await button('Create a key for one hour').click();
  await page.getByText('Key created. It ends in one hour.').waitFor();
  await page.getByRole('textbox', { name: 'Path', exact: true }).fill(path);
  await button('Send request').click();
  await page.getByText(/^Status \d+, complete\.$/).waitFor();
  return page.getByRole('log', { name: 'Answer' }).innerText();
}

test('a service is created by the form, and an error is at its field', async () => {
  await page.goto(inOrg(owner.slug, '/services'));
  await settled(page);
  await page.getByText('No services yet.').waitFor();
  await page.locator('.page__actions').getByRole('link', { name: 'New service' }).click();
  await page.waitForURL(/\/services\/new$/);
  const create = button('Create service');
  await awake(create);
  // A model first: its script follows the fields, and its names are those of the file.
  await page.getByRole('textbox', { name: 'Model file' }).fill('qwen.gguf');
  await page.getByText('Model and server', { exact: true }).click();
  await waitFor('the script', async () =>
    /--model \/models\/qwen\.gguf --model_alias qwen .*--port "\$PORT"/.test(
      await page.getByRole('textbox', { name: 'Start script' }).inputValue()));
  await create.click();
  await page.locator('#model-volume[aria-invalid="true"]').waitFor();
  assert.equal(await page.locator('#name[aria-invalid="true"]').count(), 0, 'the name is that of the file');

  await page.getByRole('radiogroup', { name: 'Program', exact: true }).getByRole('radio', { name: 'Script' }).check();
  await page.getByRole('textbox', { name: 'Script', exact: true }).fill(server('tide-1'));
  await chooseOffering(page, SLICE);
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('Not a name');
  await create.click();
  await page.locator('#name[aria-invalid="true"]').waitFor();
  await page.getByRole('textbox', { name: 'Name', exact: true }).fill('tide');
  await create.click();
  await page.waitForURL(/\/services\/svc_/);
  [service] = /svc_[0-9a-z]+/.exec(page.url());
  await page.locator('.page__head').getByText('ready', { exact: true }).waitFor({ timeout: READY_MS });
  await page.getByText('1 ready replica answers requests.').waitFor();
});

test('the page of a service tries it with a key that stays in memory', async () => {
  await openService();
  assert.equal(await answerOf('/harbour?at=high'), 'tide-1 /harbour?at=high');
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  assert.ok(!kept.includes('sk-berth-'));
  await page.reload();
  await settled(page);
  assert.equal(await page.getByLabel('Inference key', { exact: true }).inputValue(), '');
  await awake(button('Send request'));
  await button('Send request').click();
  await page.getByText('Status 401, complete.').waitFor();
  // The form above was refused too.
  forgetRefusals(401, 422);
});

test('the panel stays with its input while the portal names no gateway', async () => {
  await openService();
  await page.getByRole('textbox', { name: 'Path', exact: true }).fill('/kept');
  const gateways = '**/api/v1/orgs/*/service-gateways*';
  let asked = 0;
  for (const answer of [{ json: { items: [] } }, { status: 503, json: {} }]) {
    asked = 0;
    await page.route(gateways, (route) => {
      asked += 1;
      return route.fulfill(answer);
    });
    // The second request follows on the answer to the first one.
    await waitFor('two refreshes', () => asked > 1, 30_000);
    await page.unroute(gateways);
    assert.equal(await page.getByRole('textbox', { name: 'Path', exact: true }).inputValue(), '/kept');
  }
  // Each refusal is recorded twice: its answer, and the error of the console.
  const refusals = (kind) => view.faults.filter((fault) => kind.test(fault)).length;
  await waitFor('the faults of the refusals', () =>
    refusals(/^503 .*service-gateways/) >= asked && refusals(/^console: .*status of 503/) >= asked);
  view.faults.splice(0, Infinity, ...view.faults.filter((fault) => !/^503 .*service-gateways/.test(fault)));
  forgetRefusals(503);
});

test('the chart of the requests ends with the present hour', async () => {
  const later = await openPage(browser, demo.url, { headers: owner.headers, viewport: SIZES[0] });
  await later.page.clock.setFixedTime(Date.now() + 3 * 3_600_000);
  await later.page.goto(inOrg(owner.slug, `/services/${service}`));
  const bar = later.page.locator('.days__bars rect').last();
  await bar.waitFor({ timeout: READY_MS });
  // A bar has ten units, and the last one begins at 231.
  await waitFor('the bar of an earlier hour', async () => Number(await bar.getAttribute('x')) <= 201);
  assert.equal(await later.page.locator('.days__dates time').count(), 2);
  assert.deepEqual(later.faults, []);
  await later.close();
});

test('a service is scaled by its dialog', async () => {
  await openService();
  await button('Change scaling').click();
  const scaling = dialog('Scaling');
  await scaling.getByRole('textbox', { name: 'Least replicas' }).fill('2');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await scaling.locator('[aria-invalid="true"]').first().waitFor();
  forgetRefusals(422);
  await scaling.getByRole('textbox', { name: 'Most replicas' }).fill('2');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await scaling.waitFor({ state: 'hidden' });
  await page.getByText('The service keeps 2 replicas.').waitFor();
  // The head of the table has the words "Ready since".
  const rows = page.getByRole('table', { name: 'Replicas' }).getByRole('row')
    .filter({ has: page.locator('.table__state').getByText('ready', { exact: true }) });
  await waitFor('two ready replicas', async () => (await rows.count()) === 2, READY_MS);
  await page.getByRole('img', { name: /^Replicas: 2 ready/ }).waitFor();
});

test('a schedule is added and removed by the keyboard, also on a phone', async () => {
  await openService();
  await page.setViewportSize(SIZES[1]);
  await button('Change scaling').click();
  const scaling = dialog('Scaling');
  const add = scaling.getByRole('button', { name: 'Add window' });
  await add.focus();
  await page.keyboard.press('Enter');
  const window = scaling.getByRole('group', { name: 'Window 1' });
  const fromDay = window.getByRole('combobox', { name: 'From day' });
  await waitFor('the focus', () => fromDay.evaluate((element) => element === document.activeElement));
  // A chosen day alone makes no blank row: nothing disappears.
  await window.getByRole('combobox', { name: 'Until day' }).selectOption('sunday');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await window.getByText('Window 1, begin: Enter a time, such as 08:00.').waitFor();
  await fromDay.focus();
  await page.keyboard.press('Tab');
  await page.keyboard.type('noon');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await window.locator('[aria-invalid="true"]').first().waitFor();
  assert.deepEqual([...(await axeFindings(page)), ...(await widthFindings(page))], []);
  await window.getByRole('textbox', { name: 'From', exact: true }).fill('0:00');
  await window.getByRole('textbox', { name: 'Until', exact: true }).fill('24:00');
  await scaling.getByRole('textbox', { name: 'Time zone' }).fill('Oslo');
  await window.getByRole('textbox', { name: 'Replicas', exact: true }).fill('2');
  await window.getByRole('combobox', { name: 'From day' }).selectOption('tuesday');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await scaling.locator('#schedule-zone[aria-invalid="true"]').waitFor();
  await scaling.getByRole('textbox', { name: 'Time zone' }).fill('Europe/Oslo');
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await scaling.waitFor({ state: 'hidden' });
  await page.getByText('Schedule: Tuesday 00:00 to Monday 00:00 at least 2 replicas (Europe/Oslo).').waitFor();
  forgetRefusals(422);
  // Each opening has rows of its own.
  for (let opening = 0; opening < 2; opening += 1) {
    await button('Change scaling').click();
    assert.equal(await window.getByRole('textbox', { name: 'Replicas', exact: true }).inputValue(), '2');
    await window.getByRole('textbox', { name: 'Replicas', exact: true }).fill('many');
    await scaling.getByRole('button', { name: 'Change scaling' }).click();
    await window.locator('[aria-invalid="true"]').first().waitFor();
    await scaling.getByRole('button', { name: 'Keep scaling' }).click();
    await scaling.waitFor({ state: 'hidden' });
  }
  await button('Change scaling').click();
  await window.getByRole('button', { name: 'Remove' }).focus();
  await page.keyboard.press('Enter');
  await window.waitFor({ state: 'detached' });
  await scaling.getByRole('button', { name: 'Change scaling' }).click();
  await scaling.waitFor({ state: 'hidden' });
  await page.getByText('The service keeps 2 replicas.').waitFor();
  await page.setViewportSize(SIZES[0]);
  assert.deepEqual(view.faults, []);
});

test('host names, access and the steps of canaries are changed by the settings', async () => {
  await openService();
  await button('Change settings').click();
  const settings = dialog('Settings of tide');
  await settings.getByRole('textbox', { name: 'Host names' }).fill('tide.example.org');
  await settings.getByRole('combobox', { name: 'Access' }).selectOption('public');
  await settings.getByRole('textbox', { name: 'Least requests' }).fill('few');
  await settings.getByRole('button', { name: 'Change settings' }).click();
  await settings.locator('#step-requests[aria-invalid="true"]').waitFor();
  await settings.getByRole('textbox', { name: 'Least requests' }).fill('20');
  await settings.getByRole('checkbox', { name: 'The next step follows by itself' }).uncheck();
  await settings.getByRole('button', { name: 'Change settings' }).click();
  await settings.waitFor({ state: 'hidden' });
  await page.getByText('tide.example.org is not confirmed, so it does not lead to the service.').waitFor();
  await button('Check now the record of tide.example.org').waitFor();
  await page.getByText('The next step does not begin by itself: a person sends more traffic.').waitFor();
  const proof = { host: 'tide.example.org', confirmed: true };
  await operator('PUT', `/operator/orgs/${owner.org}/service-hosts`, proof);
  await page.getByText('The service also has the host name tide.example.org.').waitFor();
  await page.locator('.page__head').getByText('public', { exact: true }).waitFor();
  const { rollout } = await owner.api('GET', services(`/${service}`));
  assert.deepEqual(rollout, { min_requests: 20, min_seconds: 60, error_percent: 5, automatic: false });
  await button('Change settings').click();
  await settings.getByRole('combobox', { name: 'Access' }).selectOption('organization');
  await settings.getByRole('button', { name: 'Change settings' }).click();
  await settings.waitFor({ state: 'hidden' });
});

test('a promise is set, changed and removed on the page of its service', async () => {
  const availability = { good_ppm: 999_000, credit_basis_points: 1_000 };
  const [day, hour, gone] = await Promise.all(['day', 'hour', 'week'].map((window) =>
    operator('POST', '/operator/promises', { name: `tide-${window}`, terms: { window, availability } })));
  await openService();
  await button('Set promise').click();
  const choice = dialog('Promise of tide');
  const classes = choice.getByRole('combobox', { name: 'Promise' });
  const set = choice.getByRole('button', { name: 'Set promise' });
  // The button works once the offered promises are loaded.
  await awake(set);
  await set.click();
  await choice.locator('#promise-class[aria-invalid="true"]').waitFor();
  await classes.selectOption('tide-week');
  await choice.getByText('Each whole week (UTC, from Thursday) counts.').waitFor();
  await operator('DELETE', `/operator/promises/${gone.id}`);
  await set.click();
  await choice.getByText('No such promise is offered. Choose another one.').waitFor();
  await choice.getByRole('option', { name: 'tide-week' }).waitFor({ state: 'detached' });
  assert.equal(await classes.inputValue(), '');
  assert.deepEqual([...(await axeFindings(page)), ...(await widthFindings(page))], []);
  await classes.selectOption('tide-day');
  assert.equal(await choice.locator('[aria-invalid="true"]').count(), 0, 'a new choice has no error');
  await set.click();
  await choice.waitFor({ state: 'hidden' });
  await page.getByText('The service has the promise tide-day since').waitFor();
  await page.getByText('The first whole window after the choice has not begun yet.').waitFor();

  await button('Change promise').click();
  assert.equal(await classes.inputValue(), day.id);
  await classes.selectOption('tide-hour');
  await set.click();
  await choice.waitFor({ state: 'hidden' });
  await page.getByText('The service has the promise tide-hour since').waitFor();
  await button('Remove promise').click();
  const question = dialog('Remove the promise of tide?');
  await question.getByRole('button', { name: 'Keep promise' }).click();
  await button('Remove promise').click();
  await question.getByRole('button', { name: 'Remove promise' }).click();
  await page.getByText('No promise. With a promise').waitFor();
  assert.equal((await owner.api('GET', services(`/${service}/promise`))).chosen, undefined);
  for (const one of [day, hour]) await operator('DELETE', `/operator/promises/${one.id}`);
  forgetRefusals(422);
});

test('an operator withdraws and confirms a host name after a question', async () => {
  const one = await openPage(browser, demo.url, { headers: await signIn(demo.url, demo.operator) });
  await one.page.goto('/operator/host-names');
  await settled(one.page);
  const row = one.page.getByRole('table', { name: /^Host names/ }).getByRole('row').filter({ hasText: 'tide.example.org' });
  await row.getByText('confirmed by an operator').waitFor();
  await row.getByRole('button', { name: /^Withdraw tide\.example\.org of / }).click();
  const withdrawal = one.page.getByRole('dialog', { name: 'Withdraw the confirmation of tide.example.org?' });
  await withdrawal.getByRole('button', { name: 'Keep confirmation' }).click();
  await row.getByRole('button', { name: /^Withdraw / }).click();
  await withdrawal.getByRole('button', { name: 'Withdraw confirmation' }).click();
  await row.getByText('not confirmed').waitFor();
  await waitFor('the focus', () => one.page.evaluate(() => document.activeElement?.id === 'host-names-said'));
  await serviceWhen('an unconfirmed host name', (now) => now.host_states[0].confirmed === false);
  await row.getByRole('button', { name: /^Confirm tide\.example\.org of / }).click();
  const question = one.page.getByRole('dialog', { name: 'Confirm tide.example.org?' });
  await question.getByRole('button', { name: 'Confirm host name' }).click();
  await row.getByText('confirmed by an operator').waitFor();
  await serviceWhen('a confirmed host name', (now) => now.host_states[0].confirmed);
  assert.deepEqual(one.faults, []);
  await one.close();
});

test('the settings with the rows of models open again after a cancel', async () => {
  const job = { name: 'ebb', offering: SLICE, max_duration_s: 3_600, script: server('ebb') };
  const made = await owner.api('POST', services(), {
    name: 'ebb', protocol: 'openai', models: [{ name: 'ebb-1', context_tokens: 4_096 }],
    revision: { job, port: 8_000, readiness_path: '/', ready_within_s: 600, concurrency: 4 },
  });
  ebb = made.id;
  // The settings and the price need no replica.
  await owner.api('PATCH', services(`/${ebb}`), { stopped: true });
  await page.goto(inOrg(owner.slug, `/services/${ebb}`));
  await settled(page);
  await awake(button('Change settings'));
  const settings = dialog('Settings of ebb');
  const model = settings.getByRole('group', { name: 'Model 1' });
  for (let opening = 0; opening < 2; opening += 1) {
    await button('Change settings').click();
    assert.equal(await model.getByRole('textbox', { name: 'Model name' }).inputValue(), 'ebb-1');
    await model.getByRole('textbox', { name: 'Context tokens' }).fill('many');
    await settings.getByRole('button', { name: 'Change settings' }).click();
    await model.locator('[aria-invalid="true"]').waitFor();
    await settings.getByRole('button', { name: 'Keep settings' }).click();
    await settings.waitFor({ state: 'hidden' });
  }
  assert.deepEqual(view.faults, []);
});

test('an operator sets the price of the tokens of a service', async () => {
  const one = await openPage(browser, demo.url, { headers: await signIn(demo.url, demo.operator), viewport: SIZES[1] });
  await one.page.goto('/operator/token-prices');
  await settled(one.page);
  // Plain HTTP has no tokens.
  await one.page.getByRole('row').filter({ hasText: 'tide' }).getByText('no tokens').first().waitFor();
  assert.equal(await one.page.getByRole('button', { name: 'Set price of tide' }).count(), 0);
  const set = one.page.getByRole('button', { name: 'Set price of ebb' });
  await set.and(one.page.locator(':enabled')).waitFor();
  await set.click();
  const prices = one.page.getByRole('dialog', { name: 'Price of the tokens of ebb' });
  await prices.getByRole('textbox', { name: 'Prompts' }).fill('free');
  await prices.getByRole('button', { name: 'Set price' }).click();
  await prices.locator('#price-prompts[aria-invalid="true"]').waitFor();
  await prices.getByRole('textbox', { name: 'Prompts' }).fill('0.15');
  await prices.getByRole('textbox', { name: 'Completions' }).fill('0.60');
  assert.deepEqual([...(await axeFindings(one.page)), ...(await widthFindings(one.page))], []);
  await prices.getByRole('button', { name: 'Set price' }).click();
  await prices.waitFor({ state: 'hidden' });
  const row = one.page.getByRole('row').filter({ hasText: 'ebb' });
  await row.getByText('$0.15 for a million').waitFor();
  await row.getByText('$0.60 for a million').waitFor();
  const { token_price: price } = await owner.api('GET', services(`/${ebb}`));
  assert.deepEqual(price, { prompt_micros_per_million: 150_000, completion_micros_per_million: 600_000 });
  await page.getByText('$0.15 for a million prompt tokens, $0.60 for a million completion tokens').waitFor();
  await openService();
  await owner.api('DELETE', services(`/${ebb}`));
  assert.deepEqual(one.faults, []);
  await one.close();
});

test('a link in the table keeps the focus while the page refreshes', async () => {
  const link = page.getByRole('table', { name: 'Replicas' }).getByRole('link').first();
  await link.focus();
  await page.waitForResponse((response) => response.url().endsWith(services(`/${service}`)));
  await page.waitForResponse((response) => response.url().endsWith(services(`/${service}`)));
  assert.ok(await link.evaluate((element) => element === document.activeElement));
});

test('a new revision takes over, and a roll back returns to the former one', async () => {
  await page.getByRole('link', { name: 'New revision' }).click();
  await page.waitForURL(/\/new-revision$/);
  await awake(button('Create revision'));
  const script = page.getByRole('textbox', { name: 'Script', exact: true });
  // The texts come from the specification of the newest revision.
  await waitFor('the former script', async () => (await script.inputValue()).includes('tide-1'));
  await script.fill(server('tide-2'));
  await page.getByText('Rollout', { exact: true }).click();
  await page.getByRole('textbox', { name: 'Note' }).fill('Another word');
  await button('Create revision').click();
  await page.waitForURL(/\/services\/svc_[0-9a-z]+$/);
  const row = (number) => page.getByRole('table', { name: 'Revisions' }).getByRole('row')
    .filter({ has: page.getByRole('rowheader', { name: `${number}`, exact: true }) });
  await row(2).getByText('Another word').waitFor();
  await row(2).getByText('live', { exact: true }).waitFor({ timeout: READY_MS });
  await openService();
  assert.equal(await answerOf('/'), 'tide-2 /');

  await button('Roll back').click();
  await dialog('Roll back tide?').getByRole('button', { name: 'Keep revision' }).click();
  await button('Roll back').click();
  await dialog('Roll back tide?').getByRole('button', { name: 'Roll back' }).click();
  await row(1).getByText('live', { exact: true }).waitFor({ timeout: READY_MS });
  await waitFor('an answer of the former revision', async () => (await answerOf('/')) === 'tide-1 /', READY_MS);
});

test('a first revision that does not start is rolled back and replaced', async () => {
  const job = { name: 'shoal', offering: SLICE, max_duration_s: 3_600, script: '#!/bin/sh\nexit 3\n' };
  const first = { job, port: 8_000, readiness_path: '/', ready_within_s: 600, concurrency: 4 };
  const { id } = await owner.api('POST', services(), { name: 'shoal', revision: first });
  await page.goto(inOrg(owner.slug, `/services/${id}`));
  await settled(page);
  await page.getByText(/The last replica, job_[0-9a-z]+, failed: /).waitFor({ timeout: READY_MS });
  const jobs = page.getByRole('link', { name: 'Jobs of this service' });
  assert.match(await jobs.getAttribute('href'), /\/jobs\?label=berth-service%3Dshoal$/);
  await awake(button('Roll back'));
  await button('Roll back').click();
  await dialog('Roll back shoal?').getByRole('button', { name: 'Roll back' }).click();
  const revisions = page.getByRole('table', { name: 'Revisions' });
  await revisions.getByText('rolled back', { exact: true }).waitFor();
  const next = { ...first, job: { ...job, script: server('shoal') } };
  await owner.api('POST', services(`/${id}/revisions`), next);
  await revisions.getByText('live', { exact: true }).waitFor({ timeout: READY_MS });
  assert.deepEqual(view.faults, []);
  await openService();
  await owner.api('DELETE', services(`/${id}`));
});

test('traffic is sent to a revision by its dialog', async () => {
  // Revision 2 is withdrawn; only a revision on its way gets traffic.
  const { items: [{ spec }] } = await owner.api('GET', services(`/${service}/revisions?limit=1`));
  const job = { ...spec.job, script: server('tide-3') };
  await owner.api('POST', services(`/${service}/revisions`), { ...spec, job, canary_percent: [50], note: 'Third word' });
  await serviceWhen('a canary', (now) => now.revisions.some((one) => one.number === 3 && one.state === 'canary'));
  const keys = `/orgs/${owner.org}/inference-keys`;
  const key = await owner.api('POST', keys, { name: 'tester' });
  const others = await owner.api('POST', keys, { name: 'elsewhere', models: ['ocean'] });
  await openService();
  await page.getByRole('button', { name: 'Send traffic to revision 3' }).click();
  const traffic = dialog('Send traffic to revision 3');
  await traffic.getByRole('textbox', { name: 'Part of the requests' }).fill('half');
  await traffic.getByRole('button', { name: 'Send traffic' }).click();
  await traffic.locator('[aria-invalid="true"]').waitFor();
  await traffic.getByRole('textbox', { name: 'Part of the requests' }).fill('20');
  const always = traffic.getByRole('group', { name: 'Keys that always use this revision' });
  assert.equal(await always.getByRole('checkbox', { name: 'elsewhere' }).count(), 0, 'it may not use the service');
  await always.getByRole('checkbox', { name: 'tester' }).check();
  await traffic.getByRole('button', { name: 'Send traffic' }).click();
  await traffic.waitFor({ state: 'hidden' });
  await serviceWhen('a fifth of the traffic', (now) => now.revisions.some((one) => one.number === 3 && one.weight_percent === 20));
  const row = page.getByRole('table', { name: 'Revisions' }).getByRole('row').filter({ hasText: 'Third word' });
  await row.getByText('20 %').waitFor();
  await page.getByText('Key tester always uses the canary.').waitFor();
  // Without the list of keys the present ones stay.
  const list = /\/inference-keys\?/;
  await page.route(list, (route) => route.abort());
  await page.getByRole('button', { name: 'Send traffic to revision 3' }).click();
  await always.getByText('The other inference keys are not loaded.').waitFor();
  assert.equal(await traffic.getByRole('textbox', { name: 'Part of the requests' }).inputValue(), '20');
  assert.ok(await always.getByRole('checkbox', { name: 'tester' }).isChecked());
  await traffic.getByRole('textbox', { name: 'Part of the requests' }).fill('30');
  await traffic.getByRole('button', { name: 'Send traffic' }).click();
  await traffic.waitFor({ state: 'hidden' });
  await page.unroute(list);
  const sent = await serviceWhen('the next part', (now) => now.revisions.some((one) => one.number === 3 && one.weight_percent === 30));
  assert.deepEqual(sent.revisions.find((one) => one.number === 3).canary_keys.map((one) => one.name), ['tester']);
  assert.deepEqual(view.faults.splice(0).filter((fault) => !list.test(fault)), []);
  await owner.api('DELETE', `${keys}/${key.id}`);
  await owner.api('DELETE', `${keys}/${others.id}`);
  await page.getByText('Key tester always uses the canary.').waitFor({ state: 'detached' });
});

test('every page of services is sound at both widths', async () => {
  const headers = await signIn(demo.url, demo.operator);
  const paths = ['/services', `/services/${service}`, '/services/new', `/services/${service}/new-revision`, '/inference-keys'];
  const pages = [
    ...paths.map((path) => [owner.headers, inOrg(owner.slug, path)]),
    [headers, '/operator/gateways'],
    [headers, '/operator/host-names'],
    [headers, '/operator/token-prices'],
    [headers, '/operator/promises'],
  ];
  const found = [];
  for (const [headers, path] of pages) {
    for (const viewport of SIZES) {
      const one = await openPage(browser, demo.url, { headers, viewport, colorScheme: 'light' });
      await one.page.goto(path);
      await settled(one.page);
      const findings = [...(await axeFindings(one.page)), ...(await widthFindings(one.page)), ...(await cutFindings(one.page))];
      await one.page.emulateMedia({ colorScheme: 'dark' });
      // At night only colours differ from the day.
      const night = await axeFindings(one.page, ['color-contrast', 'link-in-text-block']);
      findings.push(...night.map((text) => `dark: ${text}`), ...one.faults);
      found.push(...findings.map((text) => `${path} ${viewport.width}: ${text}`));
      await one.close();
    }
  }
  assert.deepEqual(found, []);
});

test('a service is stopped, started and deleted after a question', async () => {
  await openService();
  await button('Stop service').first().click();
  await dialog('Stop tide?').getByRole('button', { name: 'Stop service' }).click();
  await page.locator('.page__head').getByText('stopped', { exact: true }).waitFor();
  await page.getByText('No replicas at present.').waitFor({ timeout: READY_MS });
  await awake(button('Start service'));
  await button('Start service').click();
  await page.locator('.page__head').getByText('ready', { exact: true }).waitFor({ timeout: READY_MS });
  await button('Delete service').first().click();
  await dialog('Delete tide?').getByRole('button', { name: 'Keep service' }).click();
  await button('Delete service').first().click();
  await dialog('Delete tide?').getByRole('button', { name: 'Delete service' }).click();
  await page.waitForURL(/\/services$/);
  await page.getByText('No services yet.').waitFor();
  assert.deepEqual(view.faults, []);
});

test('an inference key is shown once and revoked after a question', async () => {
  await page.goto(inOrg(owner.slug, '/inference-keys'));
  await settled(page);
  await awake(button('Create key').first());
  await button('Create key').first().click();
  const form = dialog('New inference key');
  await form.getByRole('textbox', { name: 'Name' }).fill('frontend');
  await form.getByRole('textbox', { name: 'Requests a minute' }).fill('many');
  await form.getByRole('button', { name: 'Create key' }).click();
  await form.locator('#key-requests[aria-invalid="true"]').waitFor();
  await form.getByRole('textbox', { name: 'Requests a minute' }).fill('60');
  await form.getByRole('textbox', { name: 'Budget a month' }).fill('12.50');
  await form.getByRole('button', { name: 'Create key' }).click();
  await form.waitFor({ state: 'hidden' });
  const secret = await page.getByRole('group', { name: 'Inference key', exact: true }).locator('code').innerText();
  assert.match(secret, /^sk-berth-[\w-]{43}$/);
  const row = page.getByRole('table', { name: 'Inference keys' }).getByRole('row').filter({ hasText: 'frontend' });
  await row.getByText('60 requests a minute').waitFor();
  await row.getByText('$12.50 a month').waitFor();
  await page.reload();
  await settled(page);
  assert.ok(!(await page.content()).includes(secret), 'it is nowhere in the page');
  await awake(page.getByRole('button', { name: 'Revoke frontend' }));
  await page.getByRole('button', { name: 'Revoke frontend' }).click();
  await dialog('Revoke frontend?').getByRole('button', { name: 'Revoke key' }).click();
  await row.waitFor({ state: 'detached' });
});

test('an operator adds and removes a gateway', async () => {
  const one = await openPage(browser, demo.url, { headers: await signIn(demo.url, demo.operator) });
  await one.page.goto('/operator/gateways');
  await settled(one.page);
  const add = one.page.getByRole('button', { name: 'Add gateway' });
  await add.and(one.page.locator(':enabled')).waitFor();
  await one.page.getByRole('textbox', { name: 'Name' }).fill('edge-9');
  await one.page.getByRole('textbox', { name: 'URL' }).fill('https://models.example.org');
  await add.click();
  const token = await one.page.getByRole('group', { name: 'Token of the gateway' }).locator('code').innerText();
  assert.match(token, /^bgw_/);
  const lines = await one.page.getByRole('group', { name: 'Start of the gateway' }).locator('code').innerText();
  assert.ok(lines.includes(`berth-gateway --portal ${demo.url} --token-file edge-9.token`) && !lines.includes(token));
  // A page may ask the gateways that are known when it is loaded.
  await waitFor('the gateway in the policy', async () => {
    const policy = (await fetch(`${demo.url}/sign-in`)).headers.get('content-security-policy');
    return /connect-src 'self'[^;]* https:\/\/models\.example\.org[ ;]/.test(policy);
  });
  await one.page.getByRole('button', { name: 'New token for edge-9' }).click();
  const renewal = one.page.getByRole('dialog', { name: 'Replace the token of edge-9?' });
  await renewal.getByRole('button', { name: 'Replace token' }).click();
  await one.page.getByText('restart the gateway with the same data directory.').and(one.page.locator('.secret p')).waitFor();
  assert.equal(await one.page.getByRole('group', { name: 'Start of the gateway' }).count(), 0);
  assert.notEqual(await one.page.getByRole('group', { name: 'Token of the gateway' }).locator('code').innerText(), token);
  await waitFor('the focus', () => one.page.evaluate(() => document.activeElement?.id === 'gateway-token'));
  await one.page.getByRole('button', { name: 'Remove edge-9' }).click();
  await one.page.getByRole('dialog', { name: 'Remove edge-9?' }).getByRole('button', { name: 'Remove gateway' }).click();
  await one.page.getByRole('row').filter({ hasText: 'edge-9' }).waitFor({ state: 'detached' });
  assert.deepEqual(one.faults, []);
  await one.close();
});
