package expr

import (
	"math/big"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

// value is a number or a quantity. What it points to never changes.
type value struct {
	number *big.Rat // nil for a quantity
	milli  *big.Int // thousandths of a quantity
	format resource.Format
}

func (v value) isQuantity() bool { return v.number == nil }

func (v value) sign() int {
	if v.isQuantity() {
		return v.milli.Sign()
	}
	return v.number.Sign()
}

// String is for messages: in cores or bytes.
func (v value) String() string {
	number := v.number
	if v.isQuantity() {
		number = new(big.Rat).SetFrac(v.milli, thousand)
	}
	f, _ := number.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// asQuantity makes a quantity of a number, toward zero. It has no format of its
// own then.
func (v value) asQuantity() value {
	if v.isQuantity() {
		return v
	}
	milli := new(big.Int).Mul(v.number.Num(), thousand)
	return value{milli: milli.Quo(milli, v.number.Denom())}
}

// times multiplies a quantity by a number, toward zero.
func (v value) times(number *big.Rat) value {
	milli := new(big.Int).Mul(v.milli, number.Num())
	return value{milli: milli.Quo(milli, number.Denom()), format: v.format}
}

// quantityOf rounds what is finer than thousandths up.
func quantityOf(q resource.Quantity) value {
	copied := q.DeepCopy()
	decimal := copied.AsDec()
	milli, shift := new(big.Int).Set(decimal.UnscaledBig()), int64(3)-int64(decimal.Scale())
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(shift, -shift)), nil)
	if shift >= 0 {
		milli.Mul(milli, power)
	} else {
		milli = ceil(milli, power)
	}
	return value{milli: milli, format: q.Format}
}

// ceil divides and rounds up. The divisor is positive.
func ceil(a, b *big.Int) *big.Int {
	quotient, rest := new(big.Int).DivMod(a, b, new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient
}

type operator byte

const (
	opConstant operator = iota
	opVariable
	opAdd
	opSubtract
	opMultiply
	opDivide
	opMax
	opMin
)

// node is an expression whose types have been checked. Each part without the
// variable has been computed: every number is a constant, since whatever a
// quantity enters is a quantity.
type node struct {
	op          operator
	quantity    bool
	constant    value // opConstant
	left, right *node // the operators
}

func constant(v value) *node { return &node{op: opConstant, quantity: v.isQuantity(), constant: v} }

// eval cannot fail: types match, and divisors are constants other than 0.
func (n *node) eval(variable value) value {
	switch n.op {
	case opConstant:
		return n.constant
	case opVariable:
		return variable
	default:
		return apply(n.op, n.left.eval(variable), n.right.eval(variable))
	}
}

func apply(op operator, a, b value) value {
	switch op {
	case opMultiply:
		return multiply(a, b)
	case opDivide:
		return multiply(a, value{number: new(big.Rat).Inv(b.number)})
	}
	if !a.isQuantity() && !b.isQuantity() {
		return ofNumbers(op, a, b)
	}
	return ofQuantities(op, a.asQuantity(), b.asQuantity())
}

func multiply(a, b value) value {
	switch {
	case a.isQuantity():
		return a.times(b.number)
	case b.isQuantity():
		return b.times(a.number)
	default:
		return value{number: new(big.Rat).Mul(a.number, b.number)}
	}
}

func ofNumbers(op operator, a, b value) value {
	switch op {
	case opAdd:
		return value{number: new(big.Rat).Add(a.number, b.number)}
	case opSubtract:
		return value{number: new(big.Rat).Sub(a.number, b.number)}
	default:
		return choose(op, a, b, a.number.Cmp(b.number))
	}
}

func ofQuantities(op operator, a, b value) value {
	format := a.format
	if a.milli.Sign() == 0 && b.format != "" || format == "" {
		format = b.format // as Quantity.Add does
	}
	switch op {
	case opAdd:
		return value{milli: new(big.Int).Add(a.milli, b.milli), format: format}
	case opSubtract:
		return value{milli: new(big.Int).Sub(a.milli, b.milli), format: format}
	default:
		return choose(op, a, b, a.milli.Cmp(b.milli))
	}
}

// choose returns the larger or smaller one, the left one of equals.
func choose(op operator, a, b value, order int) value {
	if op == opMax && order < 0 || op == opMin && order > 0 {
		return b
	}
	return a
}
