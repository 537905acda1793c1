package send

import (
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Policy says what each requester may ask for; see relayer/command/intake.
type Policy interface {
	// Refuses says why a requester may not ask for a command; empty: they may.
	Refuses(requester common.Address, c *command.Command) string
}

// request is what the row of a command says of what was asked for.
type request struct {
	CommandID string
	Requester string // an address, or KeeperName
	Kind      command.Kind
	Escrow    common.Address
	Value     wei // that create sends along
	MaxFee    wei
	ExpiresAt time.Time
	Message   []byte // as it was received, with its signature
	Factory   string // as the message names it
	Followed  bool   // the chain's fleet follows that factory, and a create's is not retired
}

// requestColumns are those of a request, of a command c. What a retired factory would create is not followed.
const requestColumns = `c.command_id, c.requester, c.kind, bytes(c.escrow) as escrow, c.value, c.max_fee, c.expires_at,
	c.message, coalesce(c.message ->> 'factory', '') as factory,
	exists (select from factories f where f.chain_id = c.chain_id and hex(f.address) = lower(c.message ->> 'factory')
		and (c.kind <> 'create' or f.retired_block is null)) as followed`

// refusal says why nothing is signed for a command.
type refusal struct{ code, detail string }

// permit looks again at what intake has looked at, from what is stored: that the row says what the
// requester signed, and that the policy allows it now. It is asked before a command gets a nonce, and
// before each signature of its call, so that write access to the table gets nothing signed that was not
// asked for. The message of a command without a refusal is what may be signed.
func (cfg *Config) permit(sender common.Address, r *request) (*command.Signed, *refusal) {
	m, err := command.Parse(r.Message)
	if err != nil {
		return nil, &refusal{command.CodeMalformed, "the stored message is no command: " + err.Error()}
	}

	if field := cfg.altered(sender, r, m); field != "" {
		return nil, &refusal{command.CodeSignature, "the stored " + field + " is not that of the message"}
	}

	if !r.Followed {
		return nil, &refusal{command.CodeForeign, "this relayer follows no factory " + m.Factory.Hex() +
			", or nothing new of it: `escrow-relayer factory list` tells which it follows"}
	}

	if r.Requester == KeeperName { // nobody has signed it
		if why := cfg.Keeper.refuses(&m.Command); why != "" {
			return nil, &refusal{command.CodeNotAllowed, why}
		}

		return m, nil
	}

	requester, err := m.Requester()
	switch {
	case err != nil:
		return nil, &refusal{command.CodeSignature, err.Error()}
	case r.Requester != registry.Text(requester):
		return nil, &refusal{command.CodeSignature, fmt.Sprintf("the stored requester is not %s, who signed it", requester)}
	case cfg.Policy == nil:
		return nil, &refusal{command.CodeNotAllowed, "the instance that has the sender's key has no policy"}
	}

	if why := cfg.Policy.Refuses(requester, &m.Command); why != "" {
		return nil, &refusal{command.CodeNotAllowed, why}
	}

	return m, nil
}

// altered names what of a row differs from its message; empty: nothing. A row that expires
// earlier only narrows what was asked for.
func (cfg *Config) altered(sender common.Address, r *request, m *command.Signed) string {
	switch {
	case m.ID().Hex() != r.CommandID:
		return "id"
	case m.ChainID != uint64(cfg.ChainID):
		return "chain"
	case m.Sender != sender:
		return "sender"
	case m.Kind != r.Kind:
		return "kind"
	case m.Escrow != r.Escrow:
		return "escrow"
	case m.Value().Cmp(r.Value.Int) != 0:
		return "value"
	case m.MaxFee.Cmp(r.MaxFee.Int) != 0:
		return "max_fee"
	case r.ExpiresAt.Unix() > int64(m.ExpiresAt):
		return "expires_at"
	}

	return ""
}
