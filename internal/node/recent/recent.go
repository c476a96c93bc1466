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

// Forget has the next who asks get a new answer. It waits for one that is being made.
func (v *Value[T]) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.made = time.Time{}
}

// maxKept bounds the answers that [Values] keeps.
const maxKept = 1024

// Values is a [Value] for each of many keys. The zero value is ready.
type Values[T any] struct {
	mu  sync.Mutex
	all map[string]*Value[T]
}

// Get returns the key's recent answer, or makes one.
func (v *Values[T]) Get(key string, answer func() T) T {
	v.mu.Lock()
	if v.all == nil || len(v.all) >= maxKept {
		v.all = map[string]*Value[T]{}
	}
	one := v.all[key]
	if one == nil {
		one = &Value[T]{}
		v.all[key] = one
	}
	v.mu.Unlock()
	return one.Get(answer)
}
