package sidecarsets_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// A selector with many values is refused before it is compared with the selectors of other
// SidecarSets. If it is stored already, it may stay.
func TestALongSelectorIsRefusedBeforeAnyLookUp(t *testing.T) {
	selecting := func(values int) string {
		list := make([]string, values)
		for i := range list {
			list[i] = fmt.Sprint("v", i)
		}
		manifest := fixtures.SidecarSet("long").Container("side", "side:v1").
			Spec("selector", map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "NotIn", "values": list}}})
		return string(fixtures.Encode(t, manifest.Map()))
	}
	tests := map[string]struct {
		set, old string
		refused  bool
	}{
		"long":                     {set: selecting(20_000), refused: true},
		"that becomes long":        {set: selecting(2000), old: selecting(1), refused: true},
		"that was stored":          {set: selecting(2000), old: selecting(2000)},
		"as long as others may be": {set: selecting(900)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reader, lookUps := &live{}, 0
			handler := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Reader: reader, Namespace: "ours",
				Stored: func(ctx context.Context) (*match.Snapshot, error) {
					lookUps++
					return reader.catalog(ctx)
				}})
			answer := fixtures.Review(t, handler, sidecarSetReview(t, tc.set, tc.old))
			switch {
			case answer.Allowed == tc.refused:
				t.Fatalf("allowed: %v, %v", answer.Allowed, answer.Result)
			case tc.refused && (lookUps > 0 || len(reader.reads) > 0):
				t.Errorf("refused after %d look-ups", lookUps)
			case tc.refused && !strings.Contains(answer.Result.Message, "spec.selector: Forbidden: has "):
				t.Errorf("refused with %.300s", answer.Result.Message)
			}
		})
	}
}
