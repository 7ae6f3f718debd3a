package inject

import (
	"fmt"
	"slices"
	"testing"
)

// A list of any length costs a bounded number of comparisons, and then a table.
func TestSearchesAreLinear(t *testing.T) {
	const n = 50_000
	env := make([]element, n)
	for i := range env {
		env[i].key = fmt.Sprint("V", i/2) // each of them twice
		env[i].body = []byte(fmt.Sprint(i))
	}
	from, into := &source{env: keyed{list: env}}, &keyed{}
	for range 2 {
		for i := range n {
			from.copyVariable(fmt.Sprint("V", i), into)
		}
	}
	if len(into.list) != n/2 {
		t.Fatalf("%d variables were copied, want %d", len(into.list), n/2)
	}
	for i, e := range into.list {
		if e.key != fmt.Sprint("V", i) || string(e.body) != fmt.Sprint(2*i+1) {
			t.Fatalf("variable %d is %s %s, want the last one of that name", i, e.key, e.body)
		}
	}
	if most := manyCompared + n; into.compared > most || from.env.compared > most {
		t.Errorf("%d and %d comparisons, want %d at most", into.compared, from.env.compared, most)
	}
}

// The table and the list give the same answers. The few searches of an ordinary Pod make no
// table.
func TestKeyedIsASet(t *testing.T) {
	few := keyed{list: []element{{key: "a"}, {key: "b"}, {key: "a"}}}
	for range 100 {
		if !few.has("a") || !few.has("b") || few.has("c") {
			t.Fatal("the list is not what it was made of")
		}
	}
	few.add(element{key: "c"})
	if few.keys != nil || !few.has("c") {
		t.Errorf("after 300 searches in 3 elements: a table is there: %v", few.keys != nil)
	}
	for range manyCompared {
		if !few.has("a") || few.has("d") {
			t.Fatal("the table is not what the list is")
		}
	}
	few.add(element{key: "d"})
	if few.keys == nil || !few.has("d") || len(few.list) != 5 {
		t.Error("no table is made")
	}
}

func TestReferencesIn(t *testing.T) {
	for expr, want := range map[string][]string{
		"": nil, "plain/path": nil, "$(A)": {"A"}, "$(A)/$(B_2)-$(c.d-e)": {"A", "B_2", "c.d-e"}, "$$(X)": {"X"},
		"$(": nil, "$()": nil, "$(A": nil, "$(1A)": nil, "$(A B)": nil, "$($(A))": {"A"}, "$(A$(B)": {"B"}, "$(A)(B)$(-)": {"A", "-"}, "$(é)": nil,
	} {
		if got := slices.Collect(referencesIn(expr)); !slices.Equal(got, want) {
			t.Errorf("%q refers to %q, want %q", expr, got, want)
		}
	}
}
