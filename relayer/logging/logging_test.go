package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

func TestCloudLogging(t *testing.T) {
	var b bytes.Buffer
	log := New(&b, "json", "info", redact.New("https://node/v2/abcdef123456"))
	log.Debug("not shown")
	log.With("component", "source").Warn("asked abcdef123456", slog.Any("err", errors.New("no abcdef123456 here")), slog.Group("g", "k", "abcdef123456"))
	require.NotContains(t, b.String(), "abcdef123456")
	var line map[string]any
	require.NoError(t, json.Unmarshal(b.Bytes(), &line))
	require.Equal(t, "WARNING", line["severity"])
	require.Equal(t, "asked ***", line["message"])
	require.Equal(t, "source", line["component"])
	require.NotEmpty(t, line["time"])
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	New(&b, "text", "debug", nil).Error("bad", "err", errors.New("why"))
	require.Contains(t, b.String(), "level=ERROR msg=bad err=why")
}
