// Package expr is the language in which a resourcesPolicy computes a sidecar's
// resources, such as max(cpu*50%, 50m). It knows the language alone: not where
// the variable's value comes from, nor what becomes of the result. Targets are the
// regular expressions next to it, which choose the containers.
//
//	expr   = term   { ("+" | "-") term }
//	term   = factor { ("*" | "/") factor }
//	factor = number | quantity | variable | "(" expr ")" | "-" factor
//	       | ("max" | "min") "(" expr "," expr ")"
//
// Names are case-insensitive; white space has no meaning. A number is written 2, .5, 1e3 or
// 50%; a quantity is digits and one of the suffixes m k M G T P Ki Mi Gi Ti Pi. The
// variable, cpu or memory, is a quantity.
//
// Numbers are exact. Quantities count in thousandths of a core or byte. A finer part is
// rounded up when a quantity is read, as in Kubernetes, and cut off when one is computed. A
// number that is added to a quantity or compared with one counts in cores or bytes and
// becomes a quantity itself. Two quantities cannot be multiplied, and nothing can be
// divided by a quantity.
package expr

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Variable is the one variable of an expression. It also says what the result
// is: cores in thousandths, or whole bytes.
type Variable string

// The variables.
const (
	CPU    Variable = "cpu"
	Memory Variable = "memory"
)

// MaxLength is how many bytes an expression may have. It also bounds how deep an expression
// can be nested.
const MaxLength = 1024

// Expr is an expression that Parse has accepted. Any number of goroutines may
// evaluate it at the same time.
type Expr struct {
	variable Variable
	root     *node
}

// Parse reads an expression over one variable and checks all that can be known without the
// variable's value: names, literals, types, division by zero, and the sign and size of a
// constant. An expression that Parse accepts fails to evaluate only if the result is
// negative or too large. The error says where the problem is and what to do.
func Parse(text string, variable Variable) (*Expr, error) {
	return parse(&parser{text: text, variable: variable})
}

// ParseStored reads an expression that is stored already, such as one that a
// ControllerRevision records, which cannot be edited. It reads what Parse accepts as
// Parse does. It reads the rest as OpenKruise does, so that Pods get what they have
// got so far:
//
//   - A decimal with letters that are not a suffix, such as 50mm or 64MB, is the number 0.
//   - An exponent may be of any size.
//   - The result of max and min is an argument as it is: cpu*max(cpu, 2) is cpu*2 as long
//     as cpu is less than 2. Otherwise it is the product of two quantities, and Eval
//     returns the error.
func ParseStored(text string, variable Variable) (*Expr, error) {
	if e, err := Parse(text, variable); err == nil {
		return e, nil
	}
	return parse(&parser{text: text, variable: variable, stored: true})
}

func parse(p *parser) (*Expr, error) {
	if len(p.text) > MaxLength {
		return nil, fmt.Errorf("it has %d bytes, and the limit is %d; shorten it", len(p.text), MaxLength)
	}
	root, err := p.expression()
	if err != nil {
		return nil, err
	}
	if p.peek(); p.position < len(p.text) {
		return nil, p.unexpected("an operator: + - * /")
	}
	e := &Expr{variable: p.variable, root: root}
	if root.op == opConstant {
		if _, err := e.result(root.constant); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Eval computes the expression. A result in memory is rounded up to whole bytes.
// It has the format (binary or decimal suffixes) of the quantity that it comes
// from. A result that is negative or too large for a quantity is an error.
func (e *Expr) Eval(variable resource.Quantity) (resource.Quantity, error) {
	v, err := e.root.eval(quantityOf(variable))
	if err != nil {
		return resource.Quantity{}, err
	}
	return e.result(v)
}

var thousand = big.NewInt(1000)

func (e *Expr) result(v value) (resource.Quantity, error) {
	if v.sign() < 0 {
		return resource.Quantity{}, fmt.Errorf("the result %s is negative; write max(…, 0) around it, or another lower bound", v)
	}
	v = v.asQuantity()
	format, units := cmp.Or(v.format, resource.DecimalSI), v.milli
	if e.variable == Memory {
		units = ceil(units, thousand)
	}
	if !units.IsInt64() {
		return resource.Quantity{}, errors.New("the result is too large for a quantity; bound it with min(…, …)")
	}
	if e.variable == Memory {
		return *resource.NewQuantity(units.Int64(), format), nil
	}
	return *resource.NewMilliQuantity(units.Int64(), format), nil
}
