package webhooks

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/propagation"
)

// API servers have connections for each path, and that of a barrier changes with
// every SidecarSet.
func TestABarrierLeavesNoConnection(t *testing.T) {
	const probe = `{"request":{"uid":"u","operation":"CREATE","dryRun":true,"resource":{"resource":"configmaps"},
		"object":{"metadata":{"labels":{"` + propagation.LabelBarrier + `":"sidecarset-pods-3"}}}}}`
	answer := httptest.NewRecorder()
	path := propagation.BarrierPath("sidecarset-pods-3", 7)
	answerBarrier(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(probe)))
	if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), `"patch"`) {
		t.Errorf("answer %d: %s", answer.Code, answer.Body)
	}
	if got := answer.Header().Get("Connection"); got != "close" {
		t.Errorf("Connection: %q, want it closed", got)
	}
}
