package certs

import (
	"errors"
	"testing"
	"time"
)

func TestWhatAReplicaDoesWithItsLeaves(t *testing.T) {
	t.Parallel()
	no, hour := errors.New("refused"), time.Hour
	leaf := func(accepted, refused int, lasts time.Duration) *judged {
		j := &judged{accepted: accepted, lasts: lasts}
		for range refused {
			j.refused = append(j.refused, no)
		}
		return j
	}
	all := func(lasts time.Duration) *judged { return leaf(3, 0, lasts) }
	with := func(j *judged, change func(*judged)) *judged { change(j); return j }
	held, hold, late := errors.New("held"), DefaultTimes.Hold, DefaultTimes.Settled
	for name, tc := range map[string]struct {
		standing
		want state
		held error
	}{
		"nothing was read":                        {standing{loading: no}, noLeaf, nil},
		"the first leaf":                          {standing{next: leaf(0, 3, -1)}, takeNext, nil},
		"the next one, accepted for two minutes":  {standing{served: all(hour), next: all(hold), wasReady: true}, takeNext, nil},
		"the next one, accepted for less":         {standing{served: all(hour), next: all(hold - 1), wasReady: true}, ready, held},
		"the next one, refused by one":            {standing{served: all(hour), next: leaf(2, 1, -1), wasReady: true}, ready, held},
		"the next one, and nothing was observed":  {standing{served: all(hour), next: all(hour), wasReady: true, notObserved: no}, unready, held},
		"all refuse the old one, some the next":   {standing{served: leaf(0, 2, -1), next: leaf(1, 1, -1), wasReady: true}, takeNext, nil},
		"all refuse both":                         {standing{served: leaf(0, 1, -1), next: leaf(0, 1, -1), wasReady: true}, unready, held},
		"each is refused by one":                  {standing{served: leaf(1, 1, -1), next: leaf(1, 1, -1), wasReady: true}, ready, held},
		"the old one ends soon":                   {standing{served: with(all(hour), func(j *judged) { j.endsSoon = true }), next: leaf(0, 3, -1)}, takeNext, nil},
		"a renewal by the same CA":                {standing{served: all(hour), next: leaf(0, 3, -1), sameCA: true}, takeNext, nil},
		"a renewal that has just begun":           {standing{served: all(hour), next: with(all(hour), func(j *judged) { j.young = true }), sameCA: true, wasReady: true}, ready, held},
		"an old Secret, and all accept":           {standing{served: all(0), age: late + 1}, ready, nil},
		"an old Secret, and one refused a leaf":   {standing{served: all(0), age: late + 1, wasRefused: true}, unready, nil},
		"an old Secret, and one refuses":          {standing{served: leaf(2, 1, -1), age: late + 1}, unready, nil},
		"a new installation":                      {standing{served: all(0), first: true}, ready, nil},
		"a new installation, and one refuses":     {standing{served: leaf(2, 1, -1), first: true}, unready, nil},
		"all accept, for a minute":                {standing{served: all(hold / 2)}, unready, nil},
		"all accept, for two minutes":             {standing{served: all(hold), wasRefused: true}, ready, nil},
		"one refuses for ten minutes":             {standing{served: leaf(2, 1, -1), known: late}, ready, nil},
		"all refuse for ten minutes":              {standing{served: leaf(0, 1, -1), known: late}, unready, nil},
		"one refuses, and it was ready":           {standing{served: leaf(2, 1, -1), wasReady: true}, ready, nil},
		"all refuse, and it was ready":            {standing{served: leaf(0, 1, -1), wasReady: true}, unready, nil},
		"all are empty, and it was ready":         {standing{served: leaf(0, 0, 0), wasReady: true}, unready, nil},
		"all are empty, after a long time":        {standing{served: leaf(0, 0, 0), known: late, first: true, age: late + 1}, unready, nil},
		"nothing was observed":                    {standing{served: all(hour), wasReady: true, notObserved: no}, unready, nil},
		"the manifests call another server":       {standing{served: all(0), first: true, elsewhere: no}, unready, nil},
		"the manifests call another server later": {standing{served: all(0), wasReady: true, elsewhere: no}, ready, nil},
	} {
		is, why, held := tc.decide(DefaultTimes)
		if is != tc.want || (held != nil) != (tc.held != nil) || (why == nil) != (is == ready || is == takeNext) {
			t.Errorf("%s: it %s, since %v; the next leaf is held: %v", name, is, why, held)
		}
	}
}
