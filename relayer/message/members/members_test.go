package members_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/message/members"
)

func TestEach(t *testing.T) {
	for object, want := range map[string][]string{
		`{}`: nil,
		` { "a" : "b" , "c":[ "d", {"e": "}"} ] ,"f":true,"g":-1.5e3}`: {`a="b"`, `c=[ "d", {"e": "}"} ]`, `f=true`, `g=-1.5e3`},
		`{"":"\"\\","a":{}}`: {`="\"\\"`, `a={}`},
	} {
		var got []string
		require.NoError(t, members.Each([]byte(object), func(name, value []byte) {
			got = append(got, string(name)+"="+string(value))
		}), object)
		require.Equal(t, want, got, object)
	}

	for _, object := range []string{``, `null`, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":x}`, `{"a":"b"`, `{"a":"b",}`,
		`{"a":"b"}}`, `{"a":"b"} x`, `{"a":"b" "c":"d"}`, `{"\u0061":"b"}`, `{"a":"b`, `{"a":"b\"}`, `{1:"b"}`, `{"a":[`} {
		require.Error(t, members.Each([]byte(object), func(_, _ []byte) {}), object)
	}
}
