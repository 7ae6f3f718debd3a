package registration

import (
	"testing"
	"time"
)

func TestWhatAShardNeedsNext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		shardFacts
		want shardAction
	}{
		"it is as it should be":                         {shardFacts{}, idle},
		"it is, and something has changed":              {shardFacts{ours: true}, idle},
		"a SidecarSet has changed":                      {shardFacts{differs: true, ours: true}, write},
		"a SidecarSet has changed while an edit stays":  {shardFacts{differs: true, ours: true, rest: time.Second}, write},
		"a SidecarSet has changed, and one is stuck":    {shardFacts{differs: true, ours: true, stuck: true}, write},
		"another program has edited it":                 {shardFacts{differs: true}, undo},
		"it edits again and again":                      {shardFacts{differs: true, rest: time.Second}, wait},
		"its pause has ended":                           {shardFacts{differs: true, rest: -time.Second}, undo},
		"an API server is stuck":                        {shardFacts{stuck: true}, mend},
		"an API server is stuck, and was mended before": {shardFacts{stuck: true, rest: time.Second}, wait},
		"an API server is stuck, and an edit is left":   {shardFacts{stuck: true, differs: true}, undo},
	} {
		if got := tc.next(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
