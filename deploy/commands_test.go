package deploy

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	commands "github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/intake"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// heredoc is the content of a file that a page has the reader write.
func heredoc(t *testing.T, page, file string) string {
	t.Helper()
	m := regexp.MustCompile(`(?s)cat > ` + regexp.QuoteMeta(file) + ` <<'?END'?\n(.*?)\nEND\n`).FindStringSubmatch(page)
	require.NotNil(t, m, file)

	return m[1]
}

func commandsPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, page, ok := strings.Cut(string(text), "\n### Commands\n")
	require.True(t, ok)
	page, _, ok = strings.Cut(page, "\n## Several chains\n")
	require.True(t, ok)

	return page
}

// The files that the page has the reader write are read by the relayer, fit each other, and name
// what Terraform makes.
func TestFilesOfCommandsFit(t *testing.T) {
	t.Parallel()
	page := commandsPage(t)
	accounts, err := send.ParseAccounts([]byte(heredoc(t, page, "senders.json")))
	require.NoError(t, err)
	require.Len(t, accounts, 1)
	require.Contains(t, accounts[0].KMS, "/keyRings/escrow-relayer/cryptoKeys/arbiter/cryptoKeyVersions/1")

	policyText := heredoc(t, page, "policy.json")
	_, err = intake.ParsePolicy([]byte(policyText))
	require.NoError(t, err)
	require.Contains(t, policyText, `"sender": "`+accounts[0].Address.Hex()+`"`)

	message := regexp.MustCompile(`\$\(\( .*? \)\)`).ReplaceAllString(heredoc(t, page, "command.json"), "1900000000")
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(message), &fields))
	fields["signature"] = hexutil.Encode(make([]byte, 65)) // `command sign` adds one
	signed, err := json.Marshal(fields)
	require.NoError(t, err)
	c, err := commands.Parse(signed)
	require.NoError(t, err)
	require.Equal(t, accounts[0].Address, c.Sender)
	require.LessOrEqual(t, c.MaxFee.Cmp(accounts[0].Limits.MaxFee), 0)
	require.Contains(t, policyText, `"`+string(c.Kind)+`"`)

	m := readModule(t)
	for _, block := range blocks(page, "hcl") {
		f, diags := hclsyntax.ParseConfig([]byte(block+"\n"), "terraform.tfvars", hcl.InitialPos)
		require.False(t, diags.HasErrors(), diags.Error())
		for name := range f.Body.(*hclsyntax.Body).Attributes {
			require.Contains(t, m.blocks, "variable."+name)
		}
	}

	for _, topic := range []string{"commands_topic", "replies_topic"} {
		name := strings.Trim(m.expression(t, m.blocks["variable."+topic].Body, "default"), `"`)
		require.Contains(t, page, name)
	}

	for _, output := range regexp.MustCompile("terraform output (?:-raw )?([a-z_]+)").FindAllStringSubmatch(page, -1) {
		require.Contains(t, m.blocks, "output."+output[1])
	}
}

// The rights that the page gives suffice for the login of the services with keys: it reads and
// writes rows of every table, also of one that a later migration makes, and changes no table.
func TestRightsOfTheKeysSuffice(t *testing.T) {
	t.Parallel()
	pool := testpg.Pool(t)
	const login = `"escrow-relayer-keys@fusion-prime.iam"`
	_, err := pool.Exec(t.Context(),
		`do $$ begin create role `+login+`; exception when duplicate_object then null; end $$`)
	require.NoError(t, err)
	given := blocks(commandsPage(t), "postgresql")
	require.Len(t, given, 2)
	for _, block := range given {
		block = strings.ReplaceAll(block, "database relayer", "database "+pool.Config().ConnConfig.Database)
		_, err := pool.Exec(t.Context(), block)
		require.NoError(t, err)
	}

	_, err = pool.Exec(t.Context(), `create table made_later (id bigserial primary key)`)
	require.NoError(t, err)
	as := func(statement string) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `set local role `+login); err != nil {
				return err
			}

			_, err := tx.Exec(t.Context(), statement)

			return err
		})
	}
	var tables []string
	err = pool.QueryRow(t.Context(),
		`select array_agg(tablename::text) from pg_tables where schemaname = 'public'`).Scan(&tables)
	require.NoError(t, err)
	require.Greater(t, len(tables), 10)
	for _, table := range tables {
		if err := as(`delete from ` + table + ` where false`); table == "escrow_relayer_versions" {
			require.ErrorContains(t, err, "permission denied", "who may change it stops every instance that starts")
		} else {
			require.NoError(t, err, table)
		}

		require.ErrorContains(t, as(`alter table `+table+` add column x int`), "must be owner", table)
	}

	require.NoError(t, as(`insert into made_later default values`))
	require.NoError(t, as(`insert into senders (chain_id, address, lock_key, max_in_flight, max_fee, day_fees, day_value)
		values (1, '0x' || repeat('0', 40), 1, 1, 0, 0, 0)`))
}
