package expr

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

type parser struct {
	text     string
	position int
	variable Variable
	stored   bool // what Parse refuses is read as in OpenKruise; see ParseStored
}

var (
	sums      = map[byte]operator{'+': opAdd, '-': opSubtract}
	products  = map[byte]operator{'*': opMultiply, '/': opDivide}
	functions = map[string]operator{"max": opMax, "min": opMin}
)

func (p *parser) expression() (*node, error) {
	return p.chain(p.term, sums)
}

func (p *parser) term() (*node, error) {
	return p.chain(p.factor, products)
}

// chain reads operands with operators of one rank between them, left to right.
func (p *parser) chain(operand func() (*node, error), operators map[byte]operator) (*node, error) {
	left, err := operand()
	for err == nil {
		op, ok := operators[p.peek()]
		if !ok {
			return left, nil
		}
		at := p.position
		p.position++
		var right *node
		if right, err = operand(); err == nil {
			left, err = p.combine(at, op, left, right)
		}
	}
	return nil, err
}

func (p *parser) factor() (*node, error) {
	switch c := p.peek(); {
	case c == '-':
		at := p.position
		p.position++
		operand, err := p.factor()
		if err != nil {
			return nil, err
		}
		return p.combine(at, opSubtract, constant(value{number: new(big.Rat)}), operand)
	case c == '(':
		p.position++
		n, err := p.expression()
		if err != nil {
			return nil, err
		}
		return n, p.expect(')', "a closing parenthesis")
	case isDigit(c) || c == '.':
		return p.literal()
	case isLetter(c):
		return p.name()
	default:
		return nil, p.unexpected("a number, a quantity, " + string(p.variable) + ", max(, min( or a parenthesis")
	}
}

// name reads the variable or a call of a function.
func (p *parser) name() (*node, error) {
	at := p.position
	for isLetter(p.here()) || isDigit(p.here()) {
		p.position++
	}
	name := p.text[at:p.position]
	if p.peek() == '(' {
		return p.call(at, name)
	}
	switch lower := strings.ToLower(name); Variable(lower) {
	case p.variable:
		return &node{op: opVariable, kind: aQuantity}, nil
	case CPU, Memory:
		return nil, p.errorAt(at, "%q cannot be used here; use %s, which is what this field computes", name, p.variable)
	default:
		return nil, p.errorAt(at, "there is no variable %q; use %s", name, p.variable)
	}
}

func (p *parser) call(at int, name string) (*node, error) {
	op, ok := functions[strings.ToLower(name)]
	if !ok {
		return nil, p.errorAt(at, "there is no function %q; use max or min", name)
	}
	p.position++
	left, err := p.expression()
	if err != nil {
		return nil, err
	}
	if err := p.expect(',', "a comma, since "+name+" takes two arguments"); err != nil {
		return nil, err
	}
	right, err := p.expression()
	if err != nil {
		return nil, err
	}
	if err := p.expect(')', "a closing parenthesis; for more than two arguments nest the calls, as in max(a, max(b, c))"); err != nil {
		return nil, err
	}
	return p.combine(at, op, left, right)
}

// combine checks the types of an operation, and computes it if it can.
func (p *parser) combine(at int, op operator, left, right *node) (*node, error) {
	n := &node{op: op, column: at + 1, left: left, right: right, asIs: p.stored && (op == opMax || op == opMin)}
	switch {
	case op == opMultiply && left.kind == aQuantity && right.kind == aQuantity:
		return nil, n.error(errProduct)
	case op == opDivide && right.kind == aQuantity:
		return nil, n.error(errDivisor)
	case left.op == opConstant && right.op == opConstant:
		v, err := n.apply(left.constant, right.constant)
		return constant(v), err
	case op == opDivide && right.op == opConstant && right.constant.sign() == 0:
		return nil, n.error(errZero)
	case left.kind == right.kind:
		n.kind = left.kind
	case n.asIs, left.kind == unsure && right.kind == aNumber, left.kind == aNumber && right.kind == unsure:
		n.kind = unsure
	default:
		n.kind = aQuantity
	}
	return n, nil
}

// literalForm is a decimal with, at most, an exponent, and a percent sign or suffix.
var literalForm = regexp.MustCompile(`^((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?)(%|[mkMGTP]|[KMGTP]i)?$`)

// malformedForm is a decimal with letters that are not a suffix. OpenKruise reads it as 0.
var malformedForm = regexp.MustCompile(`^(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[A-Za-z]+$`)

// suffixes are what a literal is multiplied with: base^exponent.
var suffixes = map[string]struct{ base, exponent int64 }{
	"k": {10, 3}, "M": {10, 6}, "G": {10, 9}, "T": {10, 12}, "P": {10, 15},
	"Ki": {2, 10}, "Mi": {2, 20}, "Gi": {2, 30}, "Ti": {2, 40}, "Pi": {2, 50},
}

// maxExponent keeps numbers small: 1e-30 of the largest quantity is nothing,
// and 1e30 of the smallest one is more than a quantity holds.
const maxExponent = 30

func (p *parser) literal() (*node, error) {
	at := p.position
	text := p.literalText()
	m := literalForm.FindStringSubmatch(text)
	switch {
	case m == nil && p.stored && malformedForm.MatchString(text):
		return constant(value{number: new(big.Rat)}), nil
	case m == nil, m[2] != "" && m[3] != "" && m[3] != "%":
		return nil, p.errorAt(at, "%q is neither a number (2, 0.5, 1e3, 50%%) nor a quantity "+
			"(digits and one of m k M G T P Ki Mi Gi Ti Pi); correct it", text)
	case !smallExponent(m[2]) && !p.stored:
		return nil, p.errorAt(at, "the exponent of %q is not between -%d and %[2]d; write a shorter number, such as 100m or 2Gi", text, maxExponent)
	}
	number := numberOf(m[1], m[2])
	switch suffix := m[3]; suffix {
	case "":
		return constant(value{number: number}), nil
	case "%":
		return constant(value{number: number.Quo(number, big.NewRat(100, 1))}), nil
	default:
		return constant(suffixed(number, suffix)), nil
	}
}

// suffixed returns a quantity. It rounds up to thousandths.
func suffixed(number *big.Rat, suffix string) value {
	milli := new(big.Int).Set(number.Num())
	if factor, ok := suffixes[suffix]; ok { // all but m
		power := new(big.Int).Exp(big.NewInt(factor.base), big.NewInt(factor.exponent), nil)
		milli.Mul(milli, power.Mul(power, thousand))
	}
	v := value{milli: ceil(milli, number.Denom()), format: resource.DecimalSI}
	if strings.HasSuffix(suffix, "i") {
		v.format = resource.BinarySI
	}
	return v
}

func smallExponent(text string) bool {
	if text == "" {
		return true
	}
	exponent, err := strconv.Atoi(text)
	return err == nil && -maxExponent <= exponent && exponent <= maxExponent
}

// numberOf reads a number. If the exponent is large, as only in stored expressions, the
// number is as exact as a floating-point number, and 0 outside the range of these, as in
// OpenKruise.
func numberOf(text, exponent string) *big.Rat {
	number := new(big.Rat)
	if smallExponent(exponent) {
		number.SetString(text)
	} else if float, err := strconv.ParseFloat(text, 64); err == nil {
		number.SetFloat64(float)
	}
	return number
}

// literalText takes all that a reader would see as one literal, well formed or not.
func (p *parser) literalText() string {
	start := p.position
	for c := p.here(); isLetter(c) || isDigit(c) || c == '.' || p.signOfExponent(start); c = p.here() {
		p.position++
	}
	if p.here() == '%' {
		p.position++
	}
	return p.text[start:p.position]
}

// signOfExponent reports whether the next byte is a sign between e and a digit.
func (p *parser) signOfExponent(start int) bool {
	if c := p.here(); c != '+' && c != '-' {
		return false
	}
	before := p.text[start:p.position]
	mantissa := strings.TrimRight(before, "eE")
	return len(mantissa) == len(before)-1 && strings.Trim(mantissa, "0123456789.") == "" &&
		p.position+1 < len(p.text) && isDigit(p.text[p.position+1])
}

// end is what peek and here return at the end of the text.
const end = 0

// peek skips white space and returns the next byte without taking it.
func (p *parser) peek() byte {
	for strings.IndexByte(" \t\r\n", p.here()) >= 0 {
		p.position++
	}
	return p.here()
}

// here returns the next byte. No token begins with end, which the text may
// contain too.
func (p *parser) here() byte {
	if p.position < len(p.text) {
		return p.text[p.position]
	}
	return end
}

func (p *parser) expect(c byte, what string) error {
	if p.peek() != c {
		return p.unexpected(what)
	}
	p.position++
	return nil
}

func (p *parser) unexpected(wanted string) error {
	if p.position >= len(p.text) {
		return fmt.Errorf("the expression ends too early; add %s", wanted)
	}
	rest := []rune(p.text[p.position:])
	return p.errorAt(p.position, "unexpected %q; put here %s", rest[0], wanted)
}

func (p *parser) errorAt(position int, format string, args ...any) error {
	return fmt.Errorf("column %d: %w", position+1, fmt.Errorf(format, args...))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }
