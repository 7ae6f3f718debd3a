// Package text knows how to shorten texts.
package text

import "strings"

const more = "…"

// Cut leaves out the end of a text that has more than so many bytes. It cuts no character into
// two.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}
