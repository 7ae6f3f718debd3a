package entries

import (
	"testing"
	"time"
)

func TestWhatASlotNeedsNext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		slotFacts
		want slotAction
	}{
		"it is as it should be":                         {slotFacts{}, idle},
		"it is, and something has changed":              {slotFacts{ours: true}, idle},
		"a SidecarSet has changed":                      {slotFacts{differs: true, ours: true}, write},
		"a SidecarSet has changed while an edit stays":  {slotFacts{differs: true, ours: true, rest: time.Second}, write},
		"a SidecarSet has changed, and one is stuck":    {slotFacts{differs: true, ours: true, stuck: true}, write},
		"another program has edited it":                 {slotFacts{differs: true}, undo},
		"it edits again and again":                      {slotFacts{differs: true, rest: time.Second}, wait},
		"its pause has ended":                           {slotFacts{differs: true, rest: -time.Second}, undo},
		"an API server is stuck":                        {slotFacts{stuck: true}, mend},
		"an API server is stuck, and was mended before": {slotFacts{stuck: true, rest: time.Second}, wait},
		"an API server is stuck, and an edit is left":   {slotFacts{stuck: true, differs: true}, undo},
	} {
		if got := tc.next(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
