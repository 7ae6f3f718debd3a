package expr_test

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/expr"
)

// variables are values at which every accepted expression is evaluated.
var variables = []resource.Quantity{
	{}, resource.MustParse("1"), resource.MustParse("101"), resource.MustParse("250m"), resource.MustParse("1Gi"),
	resource.MustParse("3n"), resource.MustParse("1e9"), resource.MustParse("9223372036854775807"), *resource.NewQuantity(-5, resource.BinarySI),
}

// No text makes the parser panic, and an accepted one evaluates without a panic to a
// quantity that is not negative, or to an error. Case has no meaning.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"max(cpu*50%, 50m)", "memory*30%", "memory+0.5", "--cpu/.5", "1e-1Ki", "min(1Mi,MEMORY)-(2", "50mm+1K*5E", "\x00µ", "1e30*1e30", "cpu/(1-1)", "(((", "max(1,2,3)", "cpu*max(cpu, 2)", "cpu/min(cpu, 0)*1e-99",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, variable := range []expr.Variable{expr.CPU, expr.Memory} {
			e, err := expr.Parse(text, variable)
			if stored, storedErr := expr.ParseStored(text, variable); storedErr == nil {
				for _, value := range variables {
					if got, err := stored.Eval(value); err == nil && got.Sign() < 0 {
						t.Fatalf("%q, stored, at %s = %s", text, value.String(), got.String())
					}
				}
			} else if err == nil {
				t.Fatalf("%q is accepted, and refused where it is stored: %v", text, storedErr)
			}
			if err != nil {
				continue
			}
			spelled := strings.NewReplacer("cpu", "CPU", "memory", "mEmOrY", "max", "MAX", "min", "MIN").Replace(text)
			respelled, err := expr.Parse(spelled, variable)
			if err != nil {
				t.Fatalf("%q is accepted, but not %q: %v", text, spelled, err)
			}
			for _, value := range variables {
				got, err := e.Eval(value)
				again, againErr := respelled.Eval(value)
				if (err == nil) != (againErr == nil) || got.Cmp(again) != 0 {
					t.Fatalf("%q = %s, %v, but %q = %s, %v", text, got.String(), err, spelled, again.String(), againErr)
				}
				if got.Sign() < 0 || variable == expr.Memory && got.MilliValue()%1000 != 0 && got.Value() < 1<<50 {
					t.Fatalf("%q at %s = %s", text, value.String(), got.String())
				}
			}
		}
	})
}

// Random well-typed expressions have the value that an oracle computes with
// rational numbers, rounding where the package's comment says so.
func FuzzEvalEqualsRationals(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		g := &generator{rand: rand.New(rand.NewPCG(seed, 0)), variable: expr.CPU}
		if seed%2 == 1 {
			g.variable = expr.Memory
		}
		value := variables[g.rand.IntN(len(variables)-1)] // not the negative one
		g.value = ceiling(rational(value), 1000)
		term := g.quantity(5)
		if g.rand.IntN(8) == 0 {
			term = g.number(5)
		}
		if len(term.text) > expr.MaxLength {
			if _, err := expr.Parse(term.text, g.variable); err == nil {
				t.Errorf("an expression of %d bytes is accepted, %d are allowed", len(term.text), expr.MaxLength)
			}
			return
		}
		check(t, g.variable, term, value)
	})
}

func check(t *testing.T, variable expr.Variable, term term, value resource.Quantity) {
	t.Helper()
	want, ok := term.result(variable)
	e, err := expr.Parse(term.text, variable)
	if err != nil {
		if ok || strings.Contains(term.text, string(variable)) {
			t.Fatalf("Parse(%q): %v", term.text, err)
		}
		return // a constant that is not a result
	}
	got, err := e.Eval(value)
	if (err == nil) != ok {
		t.Fatalf("%s at %s: %v; the oracle says %s", term.text, value.String(), err, want.FloatString(6))
	}
	if ok && rational(got).Cmp(want) != 0 {
		t.Fatalf("%s at %s = %s; the oracle says %s", term.text, value.String(), got.String(), want.FloatString(6))
	}
}

// term is an expression and its value in cores or bytes.
type term struct {
	text  string
	value *big.Rat
}

// result is what Eval has to return; ok says that it has to return a value.
func (x term) result(variable expr.Variable) (want *big.Rat, ok bool) {
	want, largest := towardZero(x.value), new(big.Rat).SetInt64(1<<63-1)
	if variable == expr.Memory {
		want = ceiling(want, 1)
	} else {
		largest.Quo(largest, big.NewRat(1000, 1))
	}
	return want, x.value.Sign() >= 0 && want.Cmp(largest) <= 0
}

func (x term) negated() term { return term{"-" + x.text, new(big.Rat).Neg(x.value)} }

// generator makes random expressions of a known type, together with their value.
type generator struct {
	rand     *rand.Rand
	variable expr.Variable
	value    *big.Rat
}

func (g *generator) number(depth int) term {
	if depth == 0 || g.rand.IntN(4) == 0 {
		return g.decimal()
	}
	a, b := g.number(depth-1), g.number(depth-1)
	switch op := g.rand.IntN(7); {
	case op == 0:
		return term{"(" + a.text + " * " + b.text + ")", new(big.Rat).Mul(a.value, b.value)}
	case op == 1 && b.value.Sign() != 0:
		return term{"(" + a.text + "/" + b.text + ")", new(big.Rat).Quo(a.value, b.value)}
	case op == 2:
		return a.negated()
	default:
		return g.either(a, b)
	}
}

func (g *generator) quantity(depth int) term {
	if depth == 0 || g.rand.IntN(6) == 0 {
		if g.rand.IntN(2) == 0 {
			return term{string(g.variable), g.value}
		}
		return g.suffixed()
	}
	q, n := g.quantity(depth-1), g.number(g.rand.IntN(3))
	switch op := g.rand.IntN(9); {
	case op == 0:
		return term{"(" + q.text + "*" + n.text + ")", towardZero(new(big.Rat).Mul(q.value, n.value))}
	case op == 1:
		return term{"(" + n.text + "*" + q.text + ")", towardZero(new(big.Rat).Mul(q.value, n.value))}
	case op == 2 && n.value.Sign() != 0:
		return term{"(" + q.text + "/" + n.text + ")", towardZero(new(big.Rat).Quo(q.value, n.value))}
	case op == 3:
		return g.either(q, term{n.text, towardZero(n.value)})
	case op == 4:
		return g.either(term{n.text, towardZero(n.value)}, q)
	case op == 5:
		return q.negated()
	default:
		return g.either(q, g.quantity(depth-1))
	}
}

// either combines two numbers, or two quantities.
func (g *generator) either(a, b term) term {
	smaller, larger := a.value, b.value
	if smaller.Cmp(larger) > 0 {
		smaller, larger = larger, smaller
	}
	switch g.rand.IntN(4) {
	case 0:
		return term{"(" + a.text + "+" + b.text + ")", new(big.Rat).Add(a.value, b.value)}
	case 1:
		return term{"(" + a.text + " - " + b.text + ")", new(big.Rat).Sub(a.value, b.value)}
	case 2:
		return term{"max(" + a.text + ", " + b.text + ")", larger}
	default:
		return term{"min(" + a.text + "," + b.text + ")", smaller}
	}
}

func (g *generator) digits() string {
	return []string{"0", "1", "2", "3", "7", "10", "50", "99", "101", "0.5", ".25", "1.", "0.0001", "33.3333", "1234567890.123456789"}[g.rand.IntN(15)]
}

func (g *generator) decimal() term {
	forms := []struct {
		text  string
		scale *big.Rat
	}{{"", big.NewRat(1, 1)}, {"%", big.NewRat(1, 100)}, {"e3", big.NewRat(1000, 1)}, {"E-2", big.NewRat(1, 100)}}
	return g.literal(forms[g.rand.IntN(len(forms))])
}

func (g *generator) suffixed() term {
	forms := []struct {
		text  string
		scale *big.Rat
	}{{"m", big.NewRat(1, 1000)}, {"k", big.NewRat(1000, 1)}, {"G", big.NewRat(1e9, 1)}, {"P", big.NewRat(1e15, 1)}, {"Ki", big.NewRat(1<<10, 1)}, {"Mi", big.NewRat(1<<20, 1)}, {"Pi", big.NewRat(1<<50, 1)}}
	q := g.literal(forms[g.rand.IntN(len(forms))])
	q.value = ceiling(q.value, 1000)
	return q
}

func (g *generator) literal(form struct {
	text  string
	scale *big.Rat
}) term {
	digits := g.digits()
	value, _ := new(big.Rat).SetString(digits)
	return term{digits + form.text, value.Mul(value, form.scale)}
}

// rational is the exact value of a quantity.
func rational(q resource.Quantity) *big.Rat {
	value, ok := new(big.Rat).SetString(q.AsDec().String())
	if !ok {
		panic("no decimal: " + q.String())
	}
	return value
}

// towardZero cuts off what is finer than thousandths.
func towardZero(x *big.Rat) *big.Rat {
	if x.Sign() < 0 {
		return new(big.Rat).Neg(floor(new(big.Rat).Neg(x), 1000))
	}
	return floor(x, 1000)
}

// ceiling rounds up to a multiple of 1/parts.
func ceiling(x *big.Rat, parts int64) *big.Rat {
	return new(big.Rat).Neg(floor(new(big.Rat).Neg(x), parts))
}

// floor rounds down to a multiple of 1/parts.
func floor(x *big.Rat, parts int64) *big.Rat {
	scaled := new(big.Rat).Mul(x, big.NewRat(parts, 1))
	whole := new(big.Int).Div(scaled.Num(), scaled.Denom()) // Euclidean: down for a positive divisor
	return new(big.Rat).SetFrac(whole, big.NewInt(parts))
}
