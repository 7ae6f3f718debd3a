package expr

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// MaxTargetLength is how many bytes the regular expression of one policy may have.
// It may list some hundred names.
const MaxTargetLength = 2048

// maxTargetSize bounds the memory that the regular expressions of one SidecarSet take
// together, in instructions of 40 bytes: 160 KB. It also bounds the time to match the
// containers of a Pod.
const maxTargetSize = 4000

// Targets compiles the regular expressions by which the policies of one SidecarSet
// choose containers. The zero Targets is ready to use. It is not safe for concurrent use.
type Targets struct{ size int }

// Compile compiles the regular expression of one policy (RE2). It refuses an expression
// that is too long. If an expression makes all of them together too large, Compile refuses
// it and every later one: a{1000} becomes a thousand instructions. The error says what to
// do about both.
func (t *Targets) Compile(text string) (*regexp.Regexp, error) {
	if len(text) > MaxTargetLength {
		return nil, fmt.Errorf("it has %d bytes, and the limit is %d; shorten it", len(text), MaxTargetLength)
	}
	if t.size <= maxTargetSize {
		parsed, err := syntax.Parse(text, syntax.Perl) // as regexp.Compile does
		if err != nil {
			return nil, err
		}
		t.size += sizeOf(parsed)
	}
	if t.size > maxTargetSize {
		return nil, fmt.Errorf("together with it, the regular expressions of this SidecarSet compile to more than %d steps (a{1000} counts as 1000); "+
			"use *, + or smaller counts", maxTargetSize)
	}
	return regexp.Compile(text)
}

// sizeOf is at least the size of what an expression is compiled to, in instructions.
func sizeOf(re *syntax.Regexp) (size int) {
	for _, sub := range re.Sub {
		size += sizeOf(sub)
	}
	switch re.Op {
	case syntax.OpConcat:
		return size
	case syntax.OpLiteral:
		return len(re.Rune)
	case syntax.OpCharClass:
		return 1 + len(re.Rune)/10 // of 4 bytes each
	case syntax.OpCapture, syntax.OpStar:
		return size + 2
	case syntax.OpAlternate:
		return size + len(re.Sub)
	case syntax.OpRepeat:
		if re.Max < 0 {
			return max(re.Min, 1)*size + 2
		}
		return max(re.Max, 1)*size + re.Max - re.Min
	}
	return size + 1
}
