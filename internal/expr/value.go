package expr

import (
	"errors"
	"fmt"
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

// asQuantity turns a number into a quantity, rounded toward zero. Such a quantity has no
// format of its own.
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

// quantityOf converts a Quantity. It rounds up to thousandths.
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

// kind is what is known of a node's value before it is computed.
type kind byte

const (
	aNumber kind = iota
	aQuantity
	// unsure: the kind depends on the variable's value. Only ParseStored makes such nodes:
	// for Parse, an operation with a quantity is a quantity.
	unsure
)

// node is an expression whose types have been checked, except where a kind is unsure.
// Each part without the variable has been computed.
type node struct {
	op          operator
	kind        kind
	constant    value // opConstant
	left, right *node // the operators
	column      int   // of the operator, for errors
	// asIs: the result of max or min is one of the operands as it is. Otherwise it is a
	// quantity if one of them is.
	asIs bool
}

func constant(v value) *node {
	n := &node{op: opConstant, constant: v}
	if v.isQuantity() {
		n.kind = aQuantity
	}
	return n
}

// The errors of operations whose operands have the wrong types.
var (
	errProduct = errors.New("multiplication of two quantities; make one side a plain number, such as 2 or 50%")
	errDivisor = errors.New("division by a quantity; divide by a plain number, such as 2")
	errZero    = errors.New("division by zero; divide by another number")
)

func (n *node) error(err error) error { return fmt.Errorf("column %d: %w", n.column, err) }

// eval fails only if a kind is unsure.
func (n *node) eval(variable value) (value, error) {
	switch n.op {
	case opConstant:
		return n.constant, nil
	case opVariable:
		return variable, nil
	}
	left, err := n.left.eval(variable)
	if err != nil {
		return value{}, err
	}
	right, err := n.right.eval(variable)
	if err != nil {
		return value{}, err
	}
	return n.apply(left, right)
}

func (n *node) apply(a, b value) (value, error) {
	switch {
	case n.op == opMultiply && a.isQuantity() && b.isQuantity():
		return value{}, n.error(errProduct)
	case n.op == opMultiply:
		return multiply(a, b), nil
	case n.op == opDivide && b.isQuantity():
		return value{}, n.error(errDivisor)
	case n.op == opDivide && b.sign() == 0:
		return value{}, n.error(errZero)
	case n.op == opDivide:
		return multiply(a, value{number: new(big.Rat).Inv(b.number)}), nil
	case !a.isQuantity() && !b.isQuantity():
		return ofNumbers(n.op, a, b), nil
	case n.asIs:
		return choose(n.op, a, b, a.asQuantity().milli.Cmp(b.asQuantity().milli)), nil
	}
	return ofQuantities(n.op, a.asQuantity(), b.asQuantity()), nil
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
