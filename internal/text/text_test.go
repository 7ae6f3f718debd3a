package text_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/text"
)

func TestCut(t *testing.T) {
	for full, want := range map[string]string{"": "", "short": "short", "12345678": "12345678", "123456789": "12345…", "1234ä6789": "1234…", "a\xff": "a?"} {
		if got := text.Cut(full, 8); got != want || len(got) > 8 {
			t.Errorf("%q is cut to %q, want %q", full, got, want)
		}
	}
}

func TestMiddle(t *testing.T) {
	for full, want := range map[string]string{"": "", "12345678": "12345678", "1234567890": "123…90", "ääääääää": "ä…ä"} {
		if got := text.Middle(full, 8); got != want || len(got) > 8 {
			t.Errorf("%q is cut to %q, want %q", full, got, want)
		}
	}
}
