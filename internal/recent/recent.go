// Package recent keeps an answer for a second, so that whoever asks often does not keep the node busy.
package recent

import (
	"cmp"
	"sync"
	"time"
)

// Value makes one answer at a time, and gives it to all who ask while it is being made and for a while after that. The zero value is
// ready.
type Value[T any] struct {
	// Age bounds the time for which an answer is given again. Zero means a second.
	Age time.Duration

	mu     sync.Mutex
	answer T
	made   time.Time
}

// Get returns the recent answer, or makes one.
func (v *Value[T]) Get(answer func() T) T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made.IsZero() || time.Since(v.made) >= cmp.Or(v.Age, time.Second) {
		v.answer = answer()
		v.made = time.Now()
	}
	return v.answer
}
