package jsonread

import (
	"errors"
	"strings"
)

// Limits of the text of a quantity. Every amount that a node can have is shorter.
const (
	mostDigits   = 32 // with point, sign and suffix
	mostExponent = 3  // characters behind the e of an exponent
)

// ErrLongQuantity says what is wrong with a quantity that is not short.
var ErrLongQuantity = errors.New("a quantity is longer than 32 characters, or has an exponent of more than 3 characters; write a shorter number, such as 100m or 2Gi")

// IsShortQuantity reports whether the text of a quantity is so short that it costs nothing
// to parse and to compare the quantity. It takes seconds to parse 1e-9000000, or to compare
// 1e9000000 with 1, and a hundred times as long with one digit more. Call it before
// resource.ParseQuantity, and before a type with quantities is decoded.
func IsShortQuantity(text string) bool {
	e := strings.IndexAny(text, "eE")
	return len(text) <= mostDigits && (e < 0 || len(text)-e-1 <= mostExponent)
}
