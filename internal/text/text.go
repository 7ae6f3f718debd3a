// Package text knows how to shorten texts.
package text

import "strings"

const more = "…"

// Cut leaves out the end of a text that has more than so many bytes. It cuts no character into
// two. Bytes that are not UTF-8 become question marks.
func Cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}

// Middle leaves out the middle of a text that has more than so many bytes. The end of a name
// tells the Pods of one owner apart.
func Middle(text string, most int) string {
	if len(text) <= most {
		return text
	}
	tail := (most - len(more)) / 2
	return Cut(text, most-tail) + strings.ToValidUTF8(text[len(text)-tail:], "")
}
