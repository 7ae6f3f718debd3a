package plane

import (
	"runtime"
	"sync"
)

var lastingThread = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// onLastingThread runs f on a thread that lives as long as this process. The kernel sends
// Pdeathsig when the thread that made the child ends, and Go may end any other thread.
func onLastingThread(f func()) {
	done := make(chan struct{})
	lastingThread() <- func() { defer close(done); f() }
	<-done
}
