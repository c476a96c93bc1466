package zds

const MaxMessage = maxMessage

var (
	MarshalHello    = marshalHello
	MarshalResponse = marshalResponse
	ParseHello      = parseHello
	ParseRequest    = parseRequest
	ParseResponse   = parseResponse

	ErrMalformed = errMalformed
	ErrRemoved   = errRemoved
	ErrTooLong   = errTooLong
)

// Marshal encodes a request.
func (r Request) Marshal() ([]byte, error) { return r.marshal() }
