package rpc

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a provider suggests is at the end of its text: Alchemy's has 304 characters.
func TestSuggestionIsNotCutOff(t *testing.T) {
	for _, r := range refusals {
		fault, err := json.Marshal(map[string]any{"code": r.code, "message": r.text})
		require.NoError(t, err)
		require.Equal(t, SuggestedRange(&Error{Message: r.text}), SuggestedRange(parseFault(fault)), r.text)
	}
}
