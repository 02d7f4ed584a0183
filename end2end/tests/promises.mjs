// The classes of promises on the page of operators, and the judged windows on the page of a service: a portal whose clock
// moves by days.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axeFindings, cutFindings, widthFindings } from './checks.mjs';
import {
  api, inOrg, launchBrowser, openPage, settled, signIn, signUp, startClockedPortal, startWorker,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'operator@example.org', password: 'lantern quay seven drizzle' };
const BOARD = 'h100-80gb';
const HOUR_S = 3_600;
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];

let portal, browser, worker, tenant, path;

before(async () => {
  portal = await startClockedPortal();
  browser = await launchBrowser();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  const operator = api(portal.url, await signIn(portal.url, OPERATOR));
  worker = await startWorker(portal, operator, 'pier-1', '1xH100-80GB');
  await operator('POST', '/operator/prices', { offering: BOARD, per_hour_micros: 2_990_000 });
  tenant = await signUp(portal.url, 'Longshore');
  const job = { name: 'tide', offering: BOARD, max_duration_s: HOUR_S, script: 'exec sleep 3600' };
  const service = await tenant.api('POST', `/orgs/${tenant.org}/services`, { name: 'tide', revision: { job, port: 8_000 } });
  path = `/services/${service.id}`;
  // The windows need no replica.
  await tenant.api('PATCH', `/orgs/${tenant.org}${path}`, { stopped: true });
  const availability = { good_ppm: 999_000, credit_basis_points: 1_000 };
  const terms = { window: 'hour', availability, surcharge_basis_points: 1_000 };
  const { id } = await operator('POST', '/operator/promises', { name: 'gold', terms });
  await tenant.api('PUT', `/orgs/${tenant.org}${path}/promise`, { promise: id });
});
after(async () => {
  await browser?.close();
  await worker?.stop();
  await portal?.stop();
});

test('judged windows are a table with pages, at both widths', async () => {
  // To the middle of an hour: no further window is judged while the pages are compared with the list.
  const intoHour = Math.floor(portal.now() / 1_000) % HOUR_S;
  await portal.forward(61 * HOUR_S + HOUR_S / 2 - intoHour);
  // The session of before has ended.
  const headers = await signIn(portal.url, tenant);
  const { items } = await api(portal.url, headers)('GET', `/orgs/${tenant.org}${path}/promise/windows?limit=200`);
  assert.ok(items.length > 55, `${items.length} windows`);
  for (const viewport of SIZES) {
    const { page, faults, close } = await openPage(browser, portal.url, { headers, viewport });
    await page.goto(inOrg(tenant.slug, path));
    await settled(page);
    await page.getByText('The service has the promise gold since').waitFor();
    await page.getByText('+10 % on the price of each replica that is submitted with the promise').waitFor();
    await page.getByText('kept so far').waitFor();
    const rows = page.getByRole('table', { name: 'Judged windows' }).getByRole('row');
    assert.equal(await rows.count(), 51, 'the head and the first page');
    const more = page.getByRole('button', { name: 'Load more' });
    await more.and(page.locator(':enabled')).click();
    await more.waitFor({ state: 'detached' });
    assert.equal(await rows.count(), items.length + 1);
    assert.equal(await rows.getByText('kept', { exact: true }).count(), items.length);
    assert.deepEqual([...(await axeFindings(page)), ...(await widthFindings(page)), ...faults], []);
    await close();
  }
});

const cell = (row, name) => row.locator(`[data-label="${name}"]`).textContent();

/** The page of the promises as somebody, with its rows by their promise. */
async function openPromises(person, viewport) {
  const headers = await signIn(portal.url, person);
  const opened = await openPage(browser, portal.url, { headers, viewport });
  const { page } = opened;
  await page.goto('/operator/promises');
  await settled(page);
  const rows = page.getByRole('table', { name: 'Offered promises' }).getByRole('row');
  const button = async (name) => {
    const found = page.getByRole('button', { name, exact: true });
    await found.and(page.locator(':enabled')).waitFor();
    return found;
  };
  const findings = async () => [...(await axeFindings(page)), ...(await widthFindings(page)), ...(await cutFindings(page))];
  return { ...opened, button, findings, call: api(portal.url, headers), row: (name) => rows.filter({ hasText: name }) };
}

test('an operator offers a promise by the keyboard, and errors are at their fields', async () => {
  const { page, faults, close, button, findings, call, row } = await openPromises(OPERATOR, SIZES[1]);
  assert.equal(await cell(row('gold'), 'Availability'), '99.9 %credit 10 %');
  assert.equal(await cell(row('gold'), 'Wake'), '–');
  assert.equal(await cell(row('gold'), 'Services'), '1');
  await (await button('New promise')).press('Enter');
  const form = page.getByRole('dialog', { name: 'New promise' });
  const name = form.getByRole('textbox', { name: 'Name' });
  const input = (part, field) => form.getByRole('group', { name: part, exact: true }).getByRole('textbox', { name: field });
  await name.press('Enter');
  await form.getByText('Promise availability, first tokens or wakes.').waitFor();
  await input('Wake', 'Share').fill('90');
  await input('Wake', 'Within').fill('901');
  await input('Wake', 'Credit').fill('2.5');
  await input('First token', 'Share').fill('95');
  await input('First token', 'Credit').fill('5');
  await input('First token', 'Credit').press('Enter');
  await form.locator('#promise-wake-within[aria-invalid="true"]').waitFor();
  await form.locator('#promise-first-token-within[aria-invalid="true"]').waitFor();
  assert.deepEqual([...(await findings()), ...faults], []);
  await input('Wake', 'Within').fill('12.5');
  await form.getByRole('combobox', { name: 'Within' }).selectOption('700 ms');
  await form.getByRole('combobox', { name: 'Window' }).selectOption('week');
  await form.getByText('Each whole week (UTC, from Thursday) counts.').waitFor();
  await form.getByRole('textbox', { name: 'Surcharge' }).fill('12.5');
  // The portal refuses a bad name, and one in use.
  await name.fill('Silver');
  await name.press('Enter');
  await form.locator('#promise-name[aria-invalid="true"]').waitFor();
  await name.fill('gold');
  await name.press('Enter');
  await form.getByText('The promise gold already exists.').waitFor();
  await name.fill('silver');
  await name.press('Enter');
  await form.waitFor({ state: 'hidden' });
  await page.getByText('Services can choose silver with its present terms.').waitFor();
  const { items } = await call('GET', '/operator/promises');
  assert.deepEqual(items.find((one) => one.name === 'silver').terms, {
    window: 'week',
    surcharge_basis_points: 1_250,
    first_token: { within_ms: 700, good_ppm: 950_000, credit_basis_points: 500 },
    wake: { within_ms: 12_500, good_ppm: 900_000, credit_basis_points: 250 },
  });
  assert.equal(await cell(row('silver'), 'First token'), '95 % within 700 mscredit 5 %');
  assert.equal(await cell(row('silver'), 'Wake'), '90 % within 12.5 scredit 2.5 %');
  assert.equal(await cell(row('silver'), 'Services'), '0');
  assert.equal(await cell(row('silver'), 'Surcharge'), '+12.5 %');
  assert.equal(await cell(row('gold'), 'Surcharge'), '+10 %');
  assert.deepEqual(await findings(), []);
  // The two refusals are faults of the console only.
  assert.deepEqual(faults.filter((fault) => !/\b(409|422)\b/.test(fault)), []);
  await close();
});

test('a changed promise keeps its former terms for its services', async () => {
  const { page, faults, close, button, findings, call, row } = await openPromises(OPERATOR, SIZES[0]);
  await (await button('Change silver')).click();
  const form = (name) => page.getByRole('dialog', { name: `Change ${name}` });
  const first = form('silver').getByRole('group', { name: 'First token', exact: true });
  assert.equal(await form('silver').getByRole('combobox', { name: 'Window' }).inputValue(), 'week');
  assert.equal(await form('silver').locator('#promise-wake-within').inputValue(), '12.5');
  assert.equal(await first.getByRole('combobox', { name: 'Within' }).inputValue(), '0.7');
  await first.getByRole('textbox', { name: 'Share' }).fill('');
  await first.getByRole('textbox', { name: 'Credit' }).fill('');
  await first.getByRole('combobox', { name: 'Within' }).selectOption('Choose a time');
  await form('silver').getByRole('button', { name: 'Change promise' }).click();
  await form('silver').waitFor({ state: 'hidden' });
  assert.equal(await cell(row('silver'), 'First token'), '–');

  // The form of another promise has nothing of the one before.
  await (await button('Change gold')).click();
  assert.equal(await form('gold').locator('#promise-wake-within').inputValue(), '');
  await form('gold').getByText('keep its former terms until they choose it again').waitFor();
  await form('gold').locator('#promise-availability-share').fill('99');
  await form('gold').getByRole('button', { name: 'Change promise' }).click();
  await form('gold').waitFor({ state: 'hidden' });
  assert.equal(await cell(row('gold'), 'Availability'), '99 %credit 10 %');
  assert.equal(await cell(row('gold'), 'Services'), '1');
  const { items } = await call('GET', '/operator/promises');
  assert.equal(items.find((one) => one.name === 'silver').terms.first_token, undefined);
  const own = api(portal.url, await signIn(portal.url, tenant));
  const { chosen } = await own('GET', `/orgs/${tenant.org}${path}/promise`);
  assert.equal(chosen.terms.availability.good_ppm, 999_000);
  assert.deepEqual([...(await findings()), ...faults], []);
  await close();
});

test('an auditor reads the promises and changes none', async () => {
  const operator = api(portal.url, await signIn(portal.url, OPERATOR));
  const auditor = await signUp(portal.url, 'Audit');
  await operator('POST', '/operator/operators', { email: auditor.email, role: 'auditor', reason: 'Reads the books.' });
  const { page, faults, close, row } = await openPromises(auditor, SIZES[1]);
  await row('gold').waitFor();
  await page.getByText('ask an operator with the role owner or billing.').waitFor();
  for (const name of ['New promise', 'Change gold', 'Retire gold']) {
    assert.equal(await page.getByRole('button', { name, exact: true }).count(), 0, name);
  }
  assert.deepEqual(faults, []);
  await close();
});

test('a promise is retired after a question', async () => {
  const { page, faults, close, button, findings, row } = await openPromises(OPERATOR, SIZES[1]);
  await (await button('Retire gold')).click();
  const question = page.getByRole('dialog', { name: 'Retire gold?' });
  await question.getByText('1 service loses it at once.').waitFor();
  await question.getByRole('button', { name: 'Keep promise' }).click();
  await question.waitFor({ state: 'hidden' });
  await (await button('Retire gold')).click();
  assert.deepEqual([...(await findings()), ...faults], []);
  await question.getByRole('button', { name: 'Retire promise' }).click();
  await question.waitFor({ state: 'hidden' });
  await page.getByText('gold is no longer offered.').waitFor();
  assert.equal(await row('gold').count(), 0);
  const own = api(portal.url, await signIn(portal.url, tenant));
  assert.equal((await own('GET', `/orgs/${tenant.org}${path}/promise`)).chosen, undefined);

  await (await button('Retire silver')).click();
  const last = page.getByRole('dialog', { name: 'Retire silver?' });
  await last.getByText('No service has it now.').waitFor();
  await last.getByRole('button', { name: 'Retire promise' }).click();
  await page.getByText('No promises yet.').waitFor();
  assert.deepEqual(await findings(), []);
  assert.deepEqual(faults, []);
  await close();
});
