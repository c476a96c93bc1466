package proctest

import (
	"strings"
	"sync"
)

// Buffer is a bytes.Buffer for several goroutines: a log that is read while it is written. The zero Buffer is empty.
type Buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write adds to the buffer; it never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written until now.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
