package entries

import (
	"testing"

	"github.com/sidecarset/operator/internal/status"
)

func TestReadinessBelongsToOneUIDAndGeneration(t *testing.T) {
	b := &Board{}
	b.replace(map[string]boardEntry{"log": {uid: "old", generation: 1, readiness: status.Readiness{Ready: true}}})
	if b.Of("log", "new", 1) != nil {
		t.Error("a SidecarSet of the same name is ready")
	}
	if b.Of("log", "old", 2) != nil {
		t.Error("the next generation is ready")
	}
	if b.Of("log", "old", 1) == nil {
		t.Error("the SidecarSet itself is not")
	}
}
