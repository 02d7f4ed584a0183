//! The one currency of the portal. Amounts in the database have no currency of their own.

use berth_store as store;
use futures::FutureExt;

use super::Ledger;

/// The setting with the currency of the amounts in the database.
const SETTING: &str = "currency";

/// The codes of ISO 4217 for money. ANG and BGN ended lately, and the books of a portal can be in them.
const CODES: &str = "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN \
                     BZD CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS \
                     GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW \
                     KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD \
                     NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD \
                     SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED \
                     VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG";

/// Parses a currency: a code of ISO 4217 in upper case.
///
/// # Errors
/// The text is another one.
pub fn parse_currency(text: &str) -> Result<String, String> {
    let code = text.to_ascii_uppercase();
    if !CODES.split(' ').any(|known| known == code) {
        return Err("enter a code of ISO 4217, such as EUR".to_owned());
    }
    if code == text { Ok(code) } else { Err(format!("enter {code}, in upper case")) }
}

impl Ledger {
    /// Stores the currency of the portal at its first start, and again while no money has moved. Later another currency
    /// would give all amounts another value.
    ///
    /// # Errors
    /// Money has moved in another currency, or the database cannot be read or written.
    pub async fn keep_currency(&self) -> Result<(), String> {
        let chosen = self.context.settings.currency.clone();
        let code = chosen.clone();
        let other = self.context.db.write(move |tx| {
            let code = code.clone();
            async move {
                let stored = store::accounts::find_setting(tx, SETTING).await?;
                if stored.as_ref() == Some(&code) {
                    return Ok(None);
                }
                if stored.is_some() && store::ledger::has_money(tx).await? {
                    return Ok(stored);
                }
                store::accounts::put_setting(tx, SETTING, &code).await?;
                Ok(None)
            }
            .boxed()
        });
        let other = other.await.map_err(|e| format!("the currency cannot be stored: {e}"))?;
        other.map_or(Ok(()), |stored| {
            Err(format!(
                "the books of this portal are in {stored}, but --currency (BERTH_CURRENCY) is {chosen}, and no amount is \
                 converted. Start the portal with --currency {stored}. A portal in {chosen} needs a data directory and a \
                 database of its own"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_currency_is_a_code_of_iso_4217_in_upper_case() {
        for good in ["USD", "EUR", "JPY", "KWD", "AED", "ZWG"] {
            assert_eq!(parse_currency(good).as_deref(), Ok(good));
        }
        for bad in ["", " ", "EU", "EURO", "XYZ", "€", "USD ", "USD EUR", "AED AFN", "XAU"] {
            assert!(parse_currency(bad).unwrap_err().contains("ISO 4217"), "{bad}");
        }
        for bad in ["usd", "Usd"] {
            assert_eq!(parse_currency(bad).unwrap_err(), "enter USD, in upper case");
        }
        assert!(CODES.split(' ').all(|code| code.len() == 3));
        assert!(CODES.split(' ').is_sorted());
    }
}
