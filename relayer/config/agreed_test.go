package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// What an instance publishes depends on the names of arguments too, and on the order of an ABI's
// entries not at all.
func TestSettingsTellABIsApart(t *testing.T) {
	const approved = `{"type":"event","name":"Approved","inputs":[{"name":"approver","type":"address","indexed":true}]}`
	const refunded = `{"type":"event","name":"EscrowRefunded","inputs":[{"name":"amount","type":"uint256"}]}`
	of := func(events ...string) string {
		abi, err := contract.New("", "["+strings.Join(events, ",")+"]")
		require.NoError(t, err)
		return (&Config{ABI: abi}).Agreed().Stream["FACTORY_ABI and ESCROW_ABI"]
	}
	require.Equal(t, of(approved, refunded), of(refunded, approved))
	for what, other := range map[string]string{
		"name of an argument": strings.Replace(approved, "approver", "by", 1),
		"type":                strings.Replace(approved, "address", "bytes32", 1),
		"indexed":             strings.Replace(approved, "true", "false", 1),
		"name of the event":   strings.Replace(approved, "Approved", "Agreed", 1),
	} {
		require.NotEqual(t, of(approved, refunded), of(other, refunded), what)
	}
}
