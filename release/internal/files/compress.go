package files

import (
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The compressors are a module's and not the standard library's, so that their version is the one in go.mod, whichever Go
// runs this.

// Gzip returns a compressor whose header tells no name and no time. The levels are 1 to 9.
func Gzip(w io.Writer, level int) (io.WriteCloser, error) {
	gz, err := gzip.NewWriterLevel(w, level)
	if err != nil {
		return nil, err
	}
	gz.ModTime = time.Unix(0, 0) // which stands for none; the zero value does not
	return gz, nil
}

// Zstd returns the best compressor of its kind. It looks 32 MiB back, which is also what it takes of memory to unpack;
// twice as much would save 2 %.
func Zstd(w io.Writer) (io.WriteCloser, error) {
	// In one goroutine, since how the input is shared out would show in the output.
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(32<<20), zstd.WithEncoderConcurrency(1))
}
