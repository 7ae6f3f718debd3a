package podstate

import "testing"

func TestForgetUpdates(t *testing.T) {
	of := func(name string) bool { return name == "log" }
	tests := map[string]struct{ value, want string }{
		"what is about others stays as it is written": {`{ "a": {"x":[1, 2]}, "log":{}, "b\u0061":{"lastContainerStatuses":{"c":{"imageID":"i"}}} }`,
			`{"a":{"x":[1, 2]},"ba":{"lastContainerStatuses":{"c":{"imageID":"i"}}}}`},
		"nothing to forget":    {`{"a":{}}`, `{"a":{}}`},
		"one that stood twice": {`{"log":{},"log":{"x":1}}`, `{}`},
		"garbage":              {`garbage`, `{}`},
		"another type":         {`{"a":{"lastContainerStatuses":[]}}`, `{}`},
		"null":                 {`null`, `{}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ForgetUpdates(tc.value, of); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
