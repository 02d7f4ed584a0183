// The rule for a second operator: one operator requires it and grants credit, and another one decides.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axeFindings } from './checks.mjs';
import { api, launchBrowser, openPage, settled, signIn, signUp, startBarePortal } from './harness.mjs';

const FIRST = { name: 'Harbour master', email: 'harbour@example.org', password: 'lantern drizzle capstan quay' };
const SECOND = { name: 'Pilot Grace', email: 'grace@example.org', password: FIRST.password };
// The account of the second operator, with the password of the first.
const ADD_OPERATOR = `
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("""INSERT INTO users (id, email, name, password_hash, operator, operator_role, created_at, email_verified_at)
  SELECT 'user_01h455vb4pex5vsknk084sn02q', ?, ?, password_hash, TRUE, 'owner', created_at, created_at FROM users WHERE email = ?""",
  sys.argv[2:])
db.commit()
`;
let portal, browser, tenant, crew, auditor, first, second;

before(async () => {
  portal = await startBarePortal();
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...FIRST });
  await portal.halt();
  const file = join(portal.data, 'berth.db');
  execFileSync('python3', ['-c', ADD_OPERATOR, file, SECOND.email, SECOND.name, FIRST.email]);
  await portal.resume();
  tenant = await signUp(portal.url, 'Kelda Lab');
  const headers = await signIn(portal.url, FIRST);
  const person = await signUp(portal.url, 'Audit');
  crew = await signUp(portal.url, 'Crew');
  const added = { email: person.email, role: 'auditor', reason: 'Reads the books.' };
  await api(portal.url, headers)('POST', '/operator/operators', added);
  auditor = await signIn(portal.url, person);
  browser = await launchBrowser();
  first = await openPage(browser, portal.url, { headers });
  const viewport = { width: 390, height: 900 };
  second = await openPage(browser, portal.url, { headers: await signIn(portal.url, SECOND), viewport });
});
after(async () => {
  await browser?.close();
  await portal?.stop();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();
const posted = async () => (await tenant.api('GET', `/orgs/${tenant.org}/balance`)).posted_micros;

async function press(where, name) {
  const button = where.getByRole('button', { name, exact: true });
  await awake(button);
  await button.click();
}

async function open(page, path) {
  await page.goto(path);
  await settled(page);
}

/** Grants ten dollars on the page of the organizations. The dialog says when the credit is available. */
async function grant(memo, time = 'Another operator must approve this within 24 hours.') {
  const { page } = first;
  await open(page, '/operator/orgs');
  await press(page, `Grant credit to ${tenant.organization}`);
  const dialog = page.getByRole('dialog');
  await dialog.getByText(time).waitFor();
  await dialog.getByLabel('Amount').fill('10');
  await dialog.getByLabel('Memo').fill(memo);
  await press(dialog, 'Grant credit');
}

/** Withdraws the only waiting request, a credit of ten dollars. */
async function withdraw() {
  await open(first.page, '/operator/changes');
  await press(first.page, `Withdraw: Credit, ${tenant.organization}: $10.00`);
  await press(first.page.getByRole('dialog', { name: 'Withdraw Credit?' }), 'Withdraw request');
  await first.page.getByText('No change requests wait.').waitFor();
}

test('an operator requires a second operator', async () => {
  const { page, faults } = first;
  await open(page, '/operator/changes');
  await page.getByText('No change requests wait.').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  await press(page, 'Require a second operator');
  await press(page.getByRole('dialog'), 'Require second operator');
  await page.getByText('Required. Credits, debits').waitFor();
  assert.deepEqual(faults, []);
});

test('a credit waits, and has its effect at the approval', async () => {
  await grant('Goodwill');
  await first.page.getByText('Waiting for a second operator').waitFor();
  assert.deepEqual(await axeFindings(first.page), []);
  assert.equal(await posted(), 0);
  // The requester can only withdraw.
  await open(first.page, '/operator/changes');
  await first.page.getByText('You cannot approve your own requests.').waitFor();
  assert.equal(await first.page.getByRole('button', { name: /^Approve/ }).count(), 0);
  assert.deepEqual(await axeFindings(first.page), []);

  await open(second.page, '/operator');
  const finding = second.page.getByRole('link', { name: '1 change request waits for a second operator' });
  assert.equal(await finding.getAttribute('href'), '/operator/changes');
  await open(second.page, '/operator/changes');
  await second.page.getByText('$10.00: Goodwill').first().waitFor();
  assert.deepEqual(await axeFindings(second.page), []);
  await press(second.page, `Approve: Credit, ${tenant.organization}: $10.00`);
  const dialog = second.page.getByRole('dialog', { name: 'Approve Credit?' });
  await dialog.waitFor();
  assert.deepEqual(await axeFindings(second.page), []);
  await press(dialog, 'Approve');
  await second.page.getByText(`approved by ${SECOND.name}`).waitFor();
  assert.equal(await posted(), 10_000_000);
});

test('a role without the right reads a request and decides nothing', async () => {
  await grant('Watched');
  await first.page.getByText('Waiting for a second operator').waitFor();
  const { page, faults, close } = await openPage(browser, portal.url, { headers: auditor });
  await open(page, '/operator/changes');
  await page.getByText('An operator with the role owner or billing decides about it.').waitFor();
  await page.getByText('Operators with the role owner change this rule.').waitFor();
  const acts = page.getByRole('button', { name: /^(Approve|Reject|Withdraw|Stop requiring)/ });
  assert.equal(await acts.count(), 0);
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(faults, []);
  await close();
  await withdraw();
});

test('a rejection has its reason, and nothing changes', async () => {
  await grant('Twice');
  await first.page.getByText('Waiting for a second operator').waitFor();
  await open(second.page, '/operator/changes');
  await press(second.page, `Reject: Credit, ${tenant.organization}: $10.00`);
  const dialog = second.page.getByRole('dialog', { name: 'Reject Credit?' });
  // Without a reason the portal refuses, and says so at the field.
  await press(dialog, 'Reject request');
  await second.page.locator('#reject-reason-error').waitFor();
  await dialog.getByLabel('Reason').fill('It was granted already.');
  await press(dialog, 'Reject request');
  await second.page.getByText(`rejected by ${SECOND.name}: It was granted already.`).waitFor();
  assert.equal(await posted(), 10_000_000);
});

test('a new operator waits for the second operator', async () => {
  const { page } = first;
  await open(page, '/operator/operators');
  await page.getByText('Another operator must approve this within 24 hours.').waitFor();
  await page.getByRole('textbox', { name: 'E-mail' }).fill(crew.email);
  await page.locator('#operator-role').selectOption('fleet');
  await page.locator('#operator-reason').fill('The night shift.');
  await press(page, 'Add operator');
  await page.getByText('Waiting for a second operator').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  const row = page.getByRole('row').filter({ hasText: crew.email });
  assert.equal(await row.count(), 0);
  await open(second.page, '/operator/changes');
  await second.page.getByText(`${crew.email}: fleet; The night shift.`).first().waitFor();
  await press(second.page, `Approve: New operator, ${crew.email}`);
  await press(second.page.getByRole('dialog', { name: 'Approve New operator?' }), 'Approve');
  await second.page.getByText('No change requests wait.').waitFor();
  await open(page, '/operator/operators');
  await row.getByText('fleet').waitFor();
  // The role reads no request about money, and the page says so.
  const desk = await openPage(browser, portal.url, { headers: await signIn(portal.url, crew) });
  await open(desk.page, '/operator/changes');
  await desk.page.getByText('Your role reads your own requests and those that it decides.').waitFor();
  assert.equal(await desk.page.getByText('Kelda Lab').count(), 0);
  assert.deepEqual([...(await axeFindings(desk.page)), ...desk.faults], []);
  await desk.close();

  // Another role with further rights waits, and a lower one does not.
  const change = async (role, time) => {
    await press(row, `Change role of ${crew.name}`);
    const dialog = page.getByRole('dialog');
    await dialog.locator('#change-role').selectOption(role);
    await dialog.getByText(time).waitFor();
    await dialog.getByLabel('Reason').fill('Another desk.');
    await press(dialog, 'Change role');
  };
  await change('support', 'Another operator must approve this within 24 hours.');
  await page.getByText('Waiting for a second operator').waitFor();
  await open(second.page, '/operator/changes');
  await press(second.page, `Approve: Role of an operator, ${crew.email}`);
  await press(second.page.getByRole('dialog', { name: 'Approve Role of an operator?' }), 'Approve');
  await second.page.getByText('No change requests wait.').waitFor();
  await open(page, '/operator/operators');
  await row.getByText('support').waitFor();
  await change('auditor', 'have the new role at once.');
  await row.getByText('auditor').waitFor();
});

test('the requester withdraws, and the rule ends with both', async () => {
  await grant('Thrice');
  await first.page.getByText('Waiting for a second operator').waitFor();
  await withdraw();
  await press(first.page, 'Stop requiring a second operator');
  await press(first.page.getByRole('dialog'), 'Request the end');
  await first.page.getByRole('heading', { name: 'End of the second operator' }).waitFor();
  await open(second.page, '/operator/changes');
  await press(second.page, 'Approve: End of the second operator, portal');
  await press(second.page.getByRole('dialog'), 'Approve');
  await second.page.getByText('Not required.').waitFor();
  await open(first.page, '/operator/changes');
  await first.page.getByText('Not required. Each operator alone').waitFor();
  await grant('Alone', 'The credit is available at once.');
  await first.page.getByText(`granted to ${tenant.organization}`).waitFor();
  assert.equal(await posted(), 20_000_000);
  // The refused rejection is the only fault.
  assert.deepEqual(first.faults, []);
  assert.ok(second.faults.every((fault) => fault.includes('422')), second.faults.join());
});
