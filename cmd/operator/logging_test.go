package operator

import (
	"bytes"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func TestBodiesOfRequestsAreNeverLogged(t *testing.T) {
	var out bytes.Buffer
	o := parse(t, "", "--zap-log-level=10")
	logger := zap.New(zap.UseFlagOptions(&o.logging), zap.RawZapOpts(filterLog()), zap.WriteTo(&out))
	for level := range 12 {
		if got, want := logger.V(level).Enabled(), level <= mostVerbose; got != want {
			t.Errorf("level %d enabled = %t, want %t", level, got, want)
		}
	}
	logger.V(mostVerbose).Info("Said")
	logger.V(8).Info("Response body", "body", "secret")
	logger.WithValues("a", 1).WithName("client").V(8).Info("Response body", "body", "secret")
	if text := out.String(); !strings.Contains(text, "Said") || strings.Contains(text, "secret") {
		t.Errorf("logged %s", text)
	}
}
