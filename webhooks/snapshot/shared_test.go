package snapshot

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// answering counts questions. It answers each when the test allows it.
type answering struct {
	mu      sync.Mutex
	asked   []string
	answers chan int
}

func (a *answering) ask(ctx context.Context, key string) (int, error) {
	a.mu.Lock()
	a.asked = append(a.asked, key)
	a.mu.Unlock()
	select {
	case answer := <-a.answers:
		return answer, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (a *answering) questions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.asked...)
}

func TestSharedAnswersByAQuestionAskedAfterTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answering{answers: make(chan int)}
		s := NewShared(8, a.ask)
		var got sync.Map
		var requests sync.WaitGroup
		get := func(name string) {
			requests.Go(func() {
				answer, err := s.Get(t.Context(), "prod")
				got.Store(name, fmt.Sprint(answer, err))
			})
			synctest.Wait()
		}
		get("first")
		for i := range 100 {
			get(fmt.Sprint("later ", i))
		}
		if n := len(a.questions()); n != 1 {
			t.Fatalf("%d questions under way, want 1", n)
		}
		a.answers <- 1
		synctest.Wait()
		a.answers <- 2
		requests.Wait()
		if n := len(a.questions()); n != 2 {
			t.Errorf("%d questions for 101 requests, want 2", n)
		}
		for name, want := range map[string]string{"first": "1 <nil>", "later 0": "2 <nil>", "later 99": "2 <nil>"} {
			if answer, _ := got.Load(name); answer != want {
				t.Errorf("%s got %v, want %s", name, answer, want)
			}
		}
	})
}

func TestSharedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answering{answers: make(chan int)}
		s := NewShared(2, a.ask)
		var requests sync.WaitGroup
		for _, key := range []string{"a", "b", "a"} {
			requests.Go(func() { _, _ = s.Get(t.Context(), key) })
			synctest.Wait()
		}
		if _, err := s.Get(t.Context(), "c"); !errors.Is(err, errTooManyQuestions) {
			t.Errorf("a third key: %v", err)
		}
		for range 3 {
			a.answers <- 1
		}
		requests.Wait()
		synctest.Wait()
		requests.Go(func() { _, _ = s.Get(t.Context(), "c") })
		a.answers <- 1
		requests.Wait()
	})
}
