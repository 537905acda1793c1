package send

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Account is one sender of a senders file: where its key is, and what it may spend.
type Account struct {
	Name         string         `json:"name"` // in metrics; its address if empty
	Address      common.Address `json:"address"`
	Keystore     string         `json:"keystore"`      // path of a go-ethereum keystore file, with
	PasswordFile string         `json:"password_file"` // the path of its password
	KMS          string         `json:"kms"`           // or the name of a key version in Google Cloud KMS
	Web3Signer   string         `json:"web3signer"`    // or the URL of a remote signer, https unless it is this machine's
	ClientCert   string         `json:"client_cert"`   // path of this client's certificate in PEM, for that signer, with
	ClientKey    string         `json:"client_key"`    // the path of its key
	ServerCA     string         `json:"server_ca"`     // path of the certificates that vouch for that signer; else the system's
	Limits       Limits         `json:"-"`
}

// accountEntry is a sender as in the file. Amounts are wei, as decimal numbers in strings.
type accountEntry struct {
	Account
	MaxInFlight *int   `json:"max_in_flight"` // 16 if missing
	MaxFee      string `json:"max_fee"`       // of one command
	DayFees     string `json:"day_fees"`      // of a UTC day; see Limits
	DayValue    string `json:"day_value"`     // that create may send along on a UTC day; 0 if missing
}

// defaultInFlight is what geth's pool guarantees an account.
const defaultInFlight = 16

// OpenAccounts reads a senders file, and says everything that is wrong with it.
func OpenAccounts(path string) ([]Account, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the senders file: %w", err)
	}

	accounts, err := ParseAccounts(content)
	if err != nil {
		return nil, fmt.Errorf("senders file %s: %w", path, err)
	}

	return accounts, nil
}

// ParseAccounts reads the content of a senders file.
func ParseAccounts(content []byte) ([]Account, error) {
	var f struct {
		Senders []accountEntry `json:"senders"`
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("not a list of senders: %w", err)
	}

	var errs []error
	say := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(f.Senders) == 0 {
		say("it names no sender")
	}

	seen := map[common.Address]bool{}
	var accounts []Account
	for i, s := range f.Senders {
		who := fmt.Sprintf("sender %d (%s)", i+1, s.Address)
		switch {
		case s.Address == (common.Address{}):
			say("%s has no address", who)
		case seen[s.Address]:
			say("%s is there twice", who)
		case s.keys() != 1:
			say("%s needs one of keystore (with password_file), kms and web3signer", who)
		case (s.ClientCert == "") != (s.ClientKey == ""):
			say("%s needs client_cert together with client_key", who)
		case s.Web3Signer == "" && s.ClientCert+s.ServerCA != "":
			say("%s has client_cert or server_ca without web3signer", who)
		case (s.Keystore == "") != (s.PasswordFile == ""):
			say("%s needs password_file together with keystore", who)
		}

		seen[s.Address] = true
		s.Limits = s.limits(func(problem string) { say("%s: %s", who, problem) })
		accounts = append(accounts, s.Account)
	}

	return accounts, errors.Join(errs...)
}

// keys is how many places the key of a sender has.
func (a *Account) keys() (n int) {
	for _, place := range []string{a.Keystore, a.KMS, a.Web3Signer} {
		if place != "" {
			n++
		}
	}

	return n
}

// limits reads what a sender may spend.
func (s *accountEntry) limits(say func(problem string)) Limits {
	l := Limits{MaxInFlight: defaultInFlight}
	if s.MaxInFlight != nil {
		l.MaxInFlight = *s.MaxInFlight
	}

	if l.MaxInFlight < 1 || l.MaxInFlight > 64 {
		say("max_in_flight must be 1 to 64")
	}

	amount := func(field, text string) *big.Int {
		n, ok := command.ParseWei(text)
		if !ok {
			say(fmt.Sprintf("%s %q must be wei, as a decimal number in a string", field, text))
		}

		return n
	}
	l.MaxFee, l.DayFees = amount("max_fee", s.MaxFee), amount("day_fees", s.DayFees)
	l.DayValue = amount("day_value", cmp.Or(s.DayValue, "0"))

	return l
}
