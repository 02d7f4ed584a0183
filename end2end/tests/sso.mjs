// Single sign-on with a real provider: an owner confirms a domain by its record at a DNS server of this test, two people
// with groups sign in in the browser, and the access of one ends after the removal at the provider.
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { after, before, test } from 'node:test';
import Provider from 'oidc-provider';
import { axeFindings } from './checks.mjs';
import {
  api, freePort, inOrg, launchBrowser, openPage, settled, signIn, signUp, startBarePortal, waitFor,
} from './harness.mjs';

const OPERATOR = { name: 'Harbour master', email: 'harbour@example.org', password: 'lantern drizzle capstan quay' };
const CLIENT = { client_id: 'berth', client_secret: 'a secret between two programs' };
const ADMIN = { email: 'ada@corp.example', name: 'Ada Lund', groups: ['admins'] };
const MEMBER = { email: 'grace@corp.example', name: 'Grace Holm', groups: ['ml'] };
/** The people of the provider by their subject. */
const people = new Map([['ada', ADMIN], ['grace', MEMBER]]);
let portal, browser, server, issuer, owner, operator, dns;
/** The TXT records by their names. */
const records = new Map();

/** The answer to a DNS message with one question: the TXT records of its name, or none (RFC 1035). */
function answerTo(message) {
  let end = 12;
  const labels = [];
  while (message[end] !== 0) {
    labels.push(message.toString('latin1', end + 1, end + 1 + message[end]));
    end += message[end] + 1;
  }
  const texts = records.get(labels.join('.')) ?? [];
  const header = [0x81, texts.length ? 0x80 : 0x83, 0, 1, 0, texts.length, 0, 0, 0, 0];
  const answers = texts.map((text) => Buffer.concat([
    Buffer.from([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60, 0, text.length + 1, text.length]), Buffer.from(text),
  ]));
  return Buffer.concat([message.subarray(0, 2), Buffer.from(header), message.subarray(12, end + 5), ...answers]);
}

/** A DNS server on this host. */
async function startDns() {
  const socket = createSocket('udp4');
  socket.on('message', (message, from) => socket.send(answerTo(message), from.port, from.address));
  await new Promise((done, failed) => socket.on('error', failed).bind(0, '127.0.0.1', done));
  return socket;
}

/** A provider on this host, whose development pages accept any password. */
async function startProvider(callback) {
  const port = await freePort();
  const provider = new Provider(`http://127.0.0.1:${port}`, {
    clients: [{
      ...CLIENT, redirect_uris: [callback], response_types: ['code'], grant_types: ['authorization_code', 'refresh_token'],
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    scopes: ['openid', 'email', 'profile', 'groups', 'offline_access'],
    cookies: { keys: ['only for this test'] },
    issueRefreshToken: () => true,
    findAccount: (_, id) => {
      const person = people.get(id);
      return person && { accountId: id, claims: () => ({ sub: id, email_verified: true, ...person }) };
    },
  });
  const listening = provider.listen(port, '127.0.0.1');
  await new Promise((done, failed) => listening.on('listening', done).on('error', failed));
  return { issuer: provider.issuer, server: listening };
}

before(async () => {
  // The provider is on this host, without https.
  dns = await startDns();
  const address = `127.0.0.1:${dns.address().port}`;
  portal = await startBarePortal({ BERTH_PRIVATE_WEBHOOKS: 'true', BERTH_DNS_SERVER: address });
  await api(portal.url, {})('POST', '/setup', { token: portal.token, ...OPERATOR });
  operator = api(portal.url, await signIn(portal.url, OPERATOR));
  owner = await signUp(portal.url);
  ({ issuer, server } = await startProvider(`${portal.url}/api/v1/sso/${owner.org}/callback`));
  browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
  server?.closeAllConnections();
  server?.close();
  await portal?.stop();
  dns?.close();
});

const awake = (button) => button.and(button.page().locator(':enabled')).waitFor();

/** Clicks the button of single sign-on, and signs in on the pages of the provider. */
async function signInAt(page, subject) {
  const button = page.getByRole('button', { name: 'Continue with single sign-on' });
  await awake(button);
  await button.click();
  await page.locator('input[name="login"]').fill(subject);
  await page.locator('input[name="password"]').fill('any password');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.waitForURL((url) => url.origin === portal.url);
}

const roleOf = async (email) => {
  const { items } = await owner.api('GET', `/orgs/${owner.org}/members`);
  return items.find((member) => member.email === email)?.role;
};

test('an owner sets the provider and confirms a domain by its record, and an operator decides too', async () => {
  const { page, faults, close } = await openPage(browser, portal.url, { headers: owner.headers });
  await page.goto(inOrg(owner.slug, '/team'));
  await settled(page);
  await page.getByText(`/api/v1/scim/${owner.org}/v2`).waitFor();
  await page.getByLabel('Issuer').fill(issuer);
  await page.getByLabel('Client ID').fill(CLIENT.client_id);
  await page.getByLabel('Client secret').fill(CLIENT.client_secret);
  await page.getByLabel('Domains').fill('corp.example');
  await page.getByLabel('Roles by group').fill('admins = king');
  const save = page.getByRole('button', { name: 'Save single sign-on' });
  await awake(save);
  await save.click();
  await page.getByText('Enter one group a line').waitFor();
  await page.getByLabel('Domains').fill('https://corp.example');
  await page.getByLabel('Roles by group').fill('admins = owner\nadmins = member');
  await save.click();
  await page.locator('#sso-domains-error').getByText(/^Domain 1: Enter a domain/).waitFor();
  await page.locator('#sso-roles-error').getByText(/^Line 2, group: This group has the role owner already/).waitFor();
  await page.getByLabel('Domains').fill('corp.example');
  await page.getByLabel('Roles by group').fill('admins = owner\nml = member');
  await save.click();
  await page.getByText('not confirmed; nobody signs in with it yet').waitFor();
  const check = page.getByRole('button', { name: 'Check now: corp.example' });
  await check.click();
  await page.getByRole('status').getByText('The TXT record with this value was not found').waitFor();
  assert.deepEqual(await axeFindings(page), []);
  const value = await page.getByRole('group', { name: 'Value of the TXT record' }).locator('code').innerText();
  assert.match(value, /^berth-verification=[0-9a-f]{32}$/);
  records.set('_berth.corp.example', ['v=spf1 -all', value]);
  await page.setViewportSize({ width: 390, height: 900 });
  await check.press('Enter');
  await page.getByRole('status').getByText('corp.example: confirmed.').waitFor();
  await page.getByRole('cell', { name: /The record is there/ }).waitFor();
  // The button keeps its focus.
  await check.and(page.locator(':focus')).waitFor();
  assert.deepEqual(await axeFindings(page), []);
  assert.deepEqual(faults.filter((fault) => !/status of 422/.test(fault)), []);
  await close();

  const { domains } = await operator('GET', '/operator/sso-domains');
  assert.deepEqual(domains.map((one) => [one.domain, one.organization]), [['corp.example', owner.org]]);
  const cookie = await signIn(portal.url, OPERATOR);
  const desk = await openPage(browser, portal.url, { headers: cookie, viewport: { width: 390, height: 900 } });
  await desk.page.goto('/operator/settings');
  await settled(desk.page);
  const withdraw = desk.page.getByRole('button', { name: /^Withdraw corp\.example/ });
  await awake(withdraw);
  await withdraw.click();
  await desk.page.getByText('corp.example: not confirmed.').waitFor();
  const confirm = desk.page.getByRole('button', { name: /^Confirm corp\.example/ });
  await awake(confirm);
  await confirm.click();
  await desk.page.getByText('corp.example: confirmed.').waitFor();
  assert.deepEqual(await axeFindings(desk.page), []);
  await desk.close();
});

test('groups decide about roles, and a removal at the provider ends the session', async () => {
  const ada = await openPage(browser, portal.url);
  await ada.page.goto(`/sign-in?org=${owner.slug}`);
  await settled(ada.page);
  assert.deepEqual(await axeFindings(ada.page), []);
  await signInAt(ada.page, 'ada');
  await settled(ada.page);
  assert.equal(await roleOf(ADMIN.email), 'owner');
  await ada.page.goto('/account');
  await ada.page.getByRole('cell', { name: issuer }).or(ada.page.getByText(issuer)).first().waitFor();

  const grace = await openPage(browser, portal.url, { viewport: { width: 390, height: 900 } });
  await grace.page.goto('/sign-in');
  await settled(grace.page);
  const button = grace.page.getByRole('button', { name: 'Continue with single sign-on' });
  await awake(button);
  await button.click();
  await grace.page.getByText('Enter your e-mail address first.').waitFor();
  await grace.page.getByRole('textbox', { name: 'E-mail' }).fill(MEMBER.email);
  await signInAt(grace.page, 'grace');
  await settled(grace.page);
  assert.equal(await roleOf(MEMBER.email), 'member');

  people.delete('grace');
  const me = (page) => page.request.get('/api/v1/me').then((answer) => answer.status());
  await waitFor('the end of the session of Grace', async () => (await me(grace.page)) === 401, 90_000);
  assert.equal(await me(ada.page), 200);
  await grace.page.goto('/account');
  await grace.page.waitForURL(/\/sign-in/);
  await ada.close();
  await grace.close();
});

test('a refused sign-in has sentences', async () => {
  people.set('eve', { email: 'eve@elsewhere.example', name: 'Eve', groups: [] });
  const { page, close } = await openPage(browser, portal.url, { viewport: { width: 390, height: 900 } });
  await page.goto(`/sign-in?org=${owner.slug}`);
  await settled(page);
  await signInAt(page, 'eve');
  await page.getByText('does not belong to a confirmed domain').waitFor();
  assert.equal(new URL(page.url()).searchParams.get('sso'), 'domain');
  assert.deepEqual(await axeFindings(page), []);
  await close();
});
