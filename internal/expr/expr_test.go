package expr_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/expr"
)

// The worked examples of OpenKruise, and the traps where it is wrong.
func TestEval(t *testing.T) {
	tests := map[string]struct {
		variable   expr.Variable
		text, with string
		want       string
	}{
		"example: half of a core, at least":                {expr.CPU, "max(cpu*50%, 50m)", "1", "500m"},
		"example: the lower bound":                         {expr.CPU, "max(cpu*50%, 50m)", "20m", "50m"},
		"example, T23: 30300m of memory are 31 bytes":      {expr.Memory, "memory*30%", "101", "31"},
		"example, T23: 101500m of memory are 102 bytes":    {expr.Memory, "memory+0.5", "101", "102"},
		"example: too little for a thousandth of a core":   {expr.CPU, "cpu*0.0001", "1", "0"},
		"example: negative on the way":                     {expr.CPU, "-1+2", "1", "1"},
		"T21: capitals":                                    {expr.Memory, "MEMORY*50%", "1Gi", "512Mi"},
		"T21: capitals of functions":                       {expr.CPU, "Max(Cpu, MIN(1, 2))", "500m", "1"},
		"T21: memory less a quantity":                      {expr.Memory, "memory-100Mi", "1Gi", "924Mi"},
		"T21: cpu less a number":                           {expr.CPU, "cpu-2", "3", "1"},
		"binary suffixes follow the variable":              {expr.Memory, "memory*2", "512Mi", "1Gi"},
		"decimal suffixes follow the variable":             {expr.Memory, "memory*2", "500M", "1G"},
		"exponents follow the variable":                    {expr.Memory, "memory*2", "5e8", "1e9"},
		"the left one of two formats":                      {expr.Memory, "memory+976562500Ki", "1T", "2T"},
		"the right one's format where the left one is 0":   {expr.Memory, "memory+1Gi", "0", "1Gi"},
		"a number has no format":                           {expr.Memory, "1024+memory", "1Ki", "2Ki"},
		"nor in front of a minus":                          {expr.Memory, "-memory+3Gi", "1Gi", "2Gi"},
		"max takes the left one of equals":                 {expr.Memory, "max(memory, 1Mi)", "1048576", "1048576"},
		"a constant is cut off at thousandths":             {expr.CPU, "0.0019", "1", "1m"},
		"a constant fraction of a byte":                    {expr.Memory, "100.5", "1", "101"},
		"a constant quantity":                              {expr.Memory, "200Mi", "0", "200Mi"},
		"a number is cut off when it is added":             {expr.CPU, "cpu+0.0019", "1", "1001m"},
		"a product is cut off toward zero":                 {expr.CPU, "1+cpu*-0.3335", "1", "667m"},
		"numbers are exact: beyond 2^53 thousandths":       {expr.Memory, "memory*1", "9007199254740993", "9007199254740993"},
		"also where they are written":                      {expr.Memory, "9007199254740993", "0", "9007199254740993"},
		"finer than thousandths is rounded up when read":   {expr.CPU, "0.5m*2", "0", "2m"},
		"so is the variable":                               {expr.CPU, "cpu*2", "100u", "2m"},
		"beyond the largest quantity on the way":           {expr.Memory, "memory*1000000000000/1000000000000", "1Pi", "1Pi"},
		"the largest quantity of memory":                   {expr.Memory, "memory", "9223372036854775807", "9223372036854775807"},
		"products bind tighter":                            {expr.CPU, "1+2*3-4/2", "0", "5"},
		"left to right":                                    {expr.CPU, "10-4-3", "0", "3"},
		"division left to right":                           {expr.CPU, "8/4/2", "0", "1"},
		"parentheses":                                      {expr.CPU, "(1+2)*(cpu-(1))", "2", "3"},
		"a minus binds tighter than a product":             {expr.CPU, "-2*-cpu", "2", "4"},
		"no white space":                                   {expr.CPU, "max(cpu,1)-1", "2", "1"},
		"white space everywhere":                           {expr.CPU, " \tmax ( cpu ,\n1 ) - 1 ", "2", "1"},
		"every form of a number":                           {expr.CPU, "1+1.+.5+1e3+1E+1+1e-1+50%+.5%*100+010", "0", "1023600m"},
		"every decimal suffix":                             {expr.Memory, "1000m+1k+1M+1G+1T+1P", "0", "1001001001001001"},
		"every binary suffix":                              {expr.Memory, "1Ki+1Mi+1Gi+1Ti+1Pi", "0", "1100586419201Ki"},
		"as deep as its length allows":                     {expr.CPU, strings.Repeat("(", 500) + "cpu" + strings.Repeat(")", 500), "2", "2"},
		"as long as it may be":                             {expr.CPU, "cpu" + strings.Repeat(" ", expr.MaxLength-3), "2", "2"},
		"a long chain":                                     {expr.CPU, "cpu" + strings.Repeat("+1", 500), "2", "502"},
		"max helps where a quantity times itself does not": {expr.CPU, "max(cpu, cpu*2)", "2", "4"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := expr.Parse(tc.text, tc.variable)
			if err != nil {
				t.Fatalf("Parse(%q): %v", tc.text, err)
			}
			got, err := e.Eval(resource.MustParse(tc.with))
			if err != nil {
				t.Fatalf("Eval: %v", err)
			}
			if got.String() != tc.want {
				t.Errorf("%s with %s = %s, want %s", tc.text, tc.with, got.String(), tc.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	const literal = " is neither a number (2, 0.5, 1e3, 50%) nor a quantity (digits and one of m k M G T P Ki Mi Gi Ti Pi); correct it"
	tests := map[string]struct {
		variable   expr.Variable
		text, want string
	}{
		"T21: a product of quantities":         {expr.CPU, "cpu*cpu", "column 4: multiplication of two quantities; make one side a plain number, such as 2 or 50%"},
		"T21: division by a quantity":          {expr.CPU, "100m/cpu", "column 5: division by a quantity; divide by a plain number, such as 2"},
		"T21: a number through max":            {expr.CPU, "cpu*max(cpu, 2)", "column 4: multiplication of two quantities"},
		"T21: memory in a cpu field":           {expr.CPU, "memory*2", `column 1: "memory" cannot be used here; use cpu, which is what this field computes`},
		"T21: cpu in a memory field":           {expr.Memory, "2*CPU", `column 3: "CPU" cannot be used here; use memory`},
		"another variable":                     {expr.Memory, "2*mem", `column 3: there is no variable "mem"; use memory`},
		"a variable with a digit":              {expr.CPU, "cpu2", `column 1: there is no variable "cpu2"`},
		"a function without its call":          {expr.CPU, "max", `column 1: there is no variable "max"; use cpu`},
		"another function":                     {expr.CPU, "1 + avg(cpu, 1)", `column 5: there is no function "avg"; use max or min`},
		"one argument":                         {expr.CPU, "max(cpu)", `column 8: unexpected ')'; put here a comma, since max takes two arguments`},
		"three arguments":                      {expr.CPU, "max(cpu, 1, 2)", `column 11: unexpected ','; put here a closing parenthesis; for more than two arguments nest the calls`},
		"no argument":                          {expr.CPU, "max()", `column 5: unexpected ')'; put here a number, a quantity, cpu, max(, min( or a parenthesis`},
		"T22: 50mm":                            {expr.CPU, "1 + 50mm", `column 5: "50mm"` + literal},
		"T22: 1K":                              {expr.Memory, "1K", `column 1: "1K"` + literal},
		"T22: 5Ei":                             {expr.Memory, "5Ei", `column 1: "5Ei"` + literal},
		"a suffix after an exponent":           {expr.Memory, "1e3Mi", `column 1: "1e3Mi"` + literal},
		"a percentage with a suffix":           {expr.Memory, "5%m", `column 3: unexpected 'm'; put here an operator: + - * /`},
		"two points":                           {expr.CPU, "1.2.3", `column 1: "1.2.3"` + literal},
		"a point alone":                        {expr.CPU, ".", `column 1: "."` + literal},
		"an exponent without digits":           {expr.CPU, "1e-cpu", `column 1: "1e"` + literal},
		"a hexadecimal":                        {expr.CPU, "0x1e-1", `column 1: "0x1e"` + literal},
		"a number written into the variable":   {expr.CPU, "2cpu", `column 1: "2cpu"` + literal},
		"a large exponent":                     {expr.CPU, "1e31", `column 1: the exponent of "1e31" is not between -30 and 30`},
		"a small exponent":                     {expr.CPU, "cpu*1e-31", `column 5: the exponent of "1e-31" is not between -30 and 30`},
		"division by zero":                     {expr.CPU, "cpu/0", "column 4: division by zero; divide by another number"},
		"division by a computed zero":          {expr.CPU, "cpu/(1-50%*2)", "column 4: division by zero"},
		"nothing":                              {expr.CPU, "", "the expression ends too early; add a number, a quantity, cpu"},
		"no second operand":                    {expr.CPU, "cpu*", "the expression ends too early"},
		"no first operand":                     {expr.CPU, "*cpu", "column 1: unexpected '*'"},
		"a plus in front":                      {expr.CPU, "+cpu", "column 1: unexpected '+'"},
		"an open parenthesis":                  {expr.CPU, "(cpu", "the expression ends too early; add a closing parenthesis"},
		"a parenthesis too many":               {expr.CPU, "cpu)", "column 4: unexpected ')'"},
		"two operands in a row":                {expr.CPU, "cpu cpu", "column 5: unexpected 'c'"},
		"another operator":                     {expr.CPU, "cpu^2", "column 4: unexpected '^'"},
		"a NUL":                                {expr.CPU, "cpu\x00*2", `column 4: unexpected '\x00'`},
		"bytes that are not text":              {expr.CPU, "\xff", "column 1: unexpected '\uFFFD'"},
		"a negative constant":                  {expr.CPU, "1-1.5", "the result -0.5 is negative; write max(…, 0) around it"},
		"a negative quantity":                  {expr.Memory, "-1Ki", "the result -1024 is negative"},
		"a constant beyond 2^63 bytes":         {expr.Memory, "8192Pi", "the result is too large for a quantity; bound it with min(…, …)"},
		"a constant beyond 2^63 thousandths":   {expr.CPU, "10P*1000", "the result is too large for a quantity"},
		"a character too many":                 {expr.CPU, "cpu" + strings.Repeat(" ", expr.MaxLength-2), "it has 1025 bytes, and the limit is 1024; shorten it"},
		"as many parentheses as fit":           {expr.CPU, strings.Repeat("(", expr.MaxLength), "the expression ends too early"},
		"as many large numbers as fit are too": {expr.CPU, strings.Repeat("1e30*", 200) + "1", "the result is too large"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := expr.Parse(tc.text, tc.variable)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("Parse(%q): %v\nwant %s", tc.text, err, tc.want)
			}
		})
	}
}

// What is stored is read as OpenKruise reads it.
func TestParseStored(t *testing.T) {
	tests := map[string]struct {
		variable         expr.Variable
		text, with, want string // want is "" if the expression is refused
	}{
		"T22: 50mm":                  {expr.CPU, "max(cpu*50%, 50mm)", "1", "500m"},
		"T22: 1K":                    {expr.Memory, "memory+1K", "1Ki", "1Ki"},
		"T22: 64MB":                  {expr.Memory, "max(64MB, memory*10%)", "1Gi", "107374183"},
		"T22: 5E":                    {expr.Memory, "5E", "1", "0"},
		"T22: 1e3x":                  {expr.CPU, "1e3x+1", "1", "1"},
		"what is well formed":        {expr.Memory, "memory+1Ki", "1Ki", "2Ki"},
		"a division by it":           {expr.CPU, "cpu/50mm", "1", ""},
		"a product with a maximum":   {expr.CPU, "cpu*max(cpu, 2)", "500m", "1"},
		"a product with a minimum":   {expr.CPU, "min(4, cpu)*cpu", "5", "20"},
		"a division by a minimum":    {expr.CPU, "cpu/min(cpu, 4)", "8", "2"},
		"a sum with a maximum":       {expr.CPU, "cpu*(-max(cpu, 2)+3)", "1", "1"},
		"a maximum within another":   {expr.Memory, "memory*max(1, max(memory, 3))", "2", "6"},
		"a maximum of quantities":    {expr.Memory, "memory*max(memory, 1Ki)", "1", ""},
		"memory of a maximum":        {expr.Memory, "50mm+max(memory, 100)", "1Ki", "1Ki"},
		"a bound that is none":       {expr.CPU, "min(cpu, 1e40)", "3", "3"},
		"a factor of almost nothing": {expr.CPU, "cpu*1e-40", "3", "0"},
		"an exponent beyond floats":  {expr.CPU, "max(cpu, 1e999999999)", "3", "3"},
		"many digits":                {expr.CPU, "cpu*2" + strings.Repeat("0", 40) + "e-40", "3", "6"},
		"a suffix after an exponent": {expr.Memory, "1e3Mi", "1", ""},
		"an exponent too large":      {expr.Memory, "1e31", "1", ""},
		"two points":                 {expr.CPU, "1.2.3", "1", ""},
		"a suffix with a percent":    {expr.CPU, "5m%", "1", ""},
		"a character too many":       {expr.CPU, "50mm" + strings.Repeat(" ", expr.MaxLength-3), "1", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := expr.ParseStored(tc.text, tc.variable)
			if err != nil || tc.want == "" {
				if err == nil || tc.want != "" {
					t.Errorf("ParseStored(%q): %v, want %q", tc.text, err, tc.want)
				}
				return
			}
			if got, err := e.Eval(resource.MustParse(tc.with)); err != nil || got.String() != tc.want {
				t.Errorf("it is %s, %v, want %s", got.String(), err, tc.want)
			}
		})
	}
}

// In a stored expression, the type of a part may depend on the variable's value.
func TestEvalOfAStoredExpressionRefuses(t *testing.T) {
	tests := map[string]struct{ text, with, want string }{
		"a product of quantities":     {"cpu*max(cpu, 2)", "2", "column 4: multiplication of two quantities; make one side a plain number, such as 2 or 50%"},
		"division by a quantity":      {"cpu/min(cpu, 4)", "3", "column 4: division by a quantity; divide by a plain number, such as 2"},
		"division by a number of 0":   {"cpu/min(cpu, 0)", "3", "column 4: division by zero; divide by another number"},
		"a sum with a quantity in it": {"cpu*(max(cpu, 2)+1)", "3", "column 4: multiplication of two quantities"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := expr.ParseStored(tc.text, expr.CPU)
			if err != nil {
				t.Fatalf("ParseStored(%q): %v", tc.text, err)
			}
			if got, err := e.Eval(resource.MustParse(tc.with)); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%s with %s = %s, %v\nwant %s", tc.text, tc.with, got.String(), err, tc.want)
			}
		})
	}
}

func TestEvalRefuses(t *testing.T) {
	tests := map[string]struct {
		variable         expr.Variable
		text, with, want string
	}{
		"less cpu than it takes away":    {expr.CPU, "cpu-2", "1500m", "the result -0.5 is negative; write max(…, 0) around it, or another lower bound"},
		"less memory than it takes away": {expr.Memory, "memory-100Mi", "99Mi", "the result -1.048576e+06 is negative"},
		"a wrap in OpenKruise":           {expr.Memory, "memory*100000", "1Pi", "the result is too large for a quantity; bound it with min(…, …)"},
		"one byte beyond the largest":    {expr.Memory, "memory+1", "9223372036854775807", "the result is too large for a quantity"},
		"cpu beyond 2^63 thousandths":    {expr.CPU, "cpu*1", "9223372036854775807", "the result is too large for a quantity"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := expr.Parse(tc.text, tc.variable)
			if err != nil {
				t.Fatalf("Parse(%q): %v", tc.text, err)
			}
			got, err := e.Eval(resource.MustParse(tc.with))
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("Eval: %s, %v\nwant %s", got.String(), err, tc.want)
			}
		})
	}
}
