package proctest

import (
	"strings"
	"sync"
)

// Buffer keeps what several goroutines write, such as a log, and may be read
// meanwhile. The zero Buffer is empty.
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
