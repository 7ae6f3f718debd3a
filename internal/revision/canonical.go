package revision

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// appendJSON writes any decoded JSON value in canonical form: compact, members sorted by name,
// null members left out.
func appendJSON(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, v)
	case string:
		return appendString(dst, v)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case float64:
		return appendFloat(dst, v)
	case []any:
		return appendList(dst, v)
	case map[string]any:
		return appendObject(dst, v)
	default: // not a decoded JSON value; a caller's int, for example
		return append(dst, fmt.Sprint(v)...)
	}
}

func appendList(dst []byte, elems []any) []byte {
	dst = append(dst, '[')
	for i, elem := range elems {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSON(dst, elem)
	}
	return append(dst, ']')
}

func appendObject(dst []byte, members map[string]any) []byte {
	dst = append(dst, '{')
	start := len(dst)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if members[name] == nil {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendJSON(dst, members[name])
	}
	return append(dst, '}')
}

// appendFloat writes a number as encoding/json and ECMAScript do: the shortest
// digits that read back the same, with an exponent only beyond 1e-6 and 1e21.
func appendFloat(dst []byte, f float64) []byte {
	size := math.Abs(f)
	if size == 0 {
		return append(dst, '0') // -0 does not survive being written and read
	}
	if size >= 1e-6 && size < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); n >= 4 && dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 becomes e-9
		dst = dst[:n-1]
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendString writes a string as encoding/json does with HTML escaping. It is
// written out here because that package has changed its escapes before (\b and
// \f, Go 1.22).
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			dst = appendASCII(dst, s[i])
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, `\ufffd`...)
		case r == '\u2028' || r == '\u2029': // not allowed in a JavaScript string
			dst = append(dst, `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
		default:
			dst = append(dst, s[i:i+size]...)
		}
		i += size
	}
	return append(dst, '"')
}

func appendASCII(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if c < ' ' || c == '<' || c == '>' || c == '&' {
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
	}
	return append(dst, c)
}
