//! A reader of pickles that hold plain data: dictionaries, lists, tuples, numbers, texts. It executes nothing: a pickle that
//! names a class or a function is refused.

use base::{Code, Diagnostic, Result};
use serde_json::{Map, Number, Value};

/// Nothing in a dump is nested deeper, or larger.
const DEEPEST: usize = 64;
const MOST_VALUES: usize = 50_000_000;

/// What the machine's stack holds.
enum Item {
    Mark,
    Value(Value),
}

/// Reads the pickle in `data`. `file` is how messages call it.
pub fn read(data: &[u8], file: &str) -> Result<Value> {
    Machine { data, at: 0, stack: Vec::new(), memo: Vec::new(), values: 0 }.run().map_err(|(at, why)| {
        Diagnostic::new(Code::BAD_DUMP, "this pickle cannot be read")
            .at_line(file, 0, 0)
            .because(format!("{why} at byte {at}"))
            .hint("only plain data is read, as `torch._C._distributed_c10d._dump_fr_trace()` returns it; nothing is executed")
    })
}

struct Machine<'d> {
    data: &'d [u8],
    at: usize,
    stack: Vec<Item>,
    memo: Vec<Option<Value>>,
    values: usize,
}

type Step<T> = std::result::Result<T, String>;

impl<'d> Machine<'d> {
    fn run(mut self) -> std::result::Result<Value, (usize, String)> {
        loop {
            let at = self.at;
            match self.step() {
                Ok(None) => {}
                Ok(Some(value)) => return Ok(value),
                Err(why) => return Err((at, why)),
            }
        }
    }

    /// One instruction; the result at the last.
    fn step(&mut self) -> Step<Option<Value>> {
        match self.byte()? {
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => self.stack.push(Item::Mark),
            b'0' => drop(self.pop()?),
            b'N' => self.push(Value::Null)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(value.into())?;
            }
            b'K' => {
                let value = self.byte()?;
                self.push(value.into())?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?);
                self.push(value.into())?;
            }
            0x8a => self.long()?,
            b'G' => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Number::from_f64(value).map_or(Value::Null, Value::Number))?;
            }
            b'X' | b'B' => self.text(4)?,
            0x8c | b'C' => self.text(1)?,
            0x8d => self.text(8)?,
            b']' | b')' => self.push(Value::Array(Vec::new()))?,
            b'}' => self.push(Value::Object(Map::new()))?,
            b'a' => self.append()?,
            b'e' => self.appends()?,
            b's' => self.set_items(1)?,
            b'u' => self.set_items(usize::MAX)?,
            b't' | b'l' => {
                let values = self.pop_to_mark()?;
                self.push(Value::Array(values))?;
            }
            count @ 0x85..=0x87 => self.tuple(usize::from(count - 0x84))?,
            b'q' => {
                let slot = usize::from(self.byte()?);
                self.put(slot)?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?) as usize;
                self.put(slot)?;
            }
            0x94 => self.put(self.memo.len())?,
            b'h' => {
                let slot = usize::from(self.byte()?);
                self.get(slot)?;
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?) as usize;
                self.get(slot)?;
            }
            b'c' | 0x93 | b'R' | b'b' | b'i' | b'o' | 0x81 | 0x92 | b'P' | b'Q' | 0x82..=0x84 => {
                return Err("it wants to call or to make an object, which is refused".to_owned());
            }
            other => return Err(format!("instruction {other:#04x} is not one of plain data")),
        }
        Ok(None)
    }

    fn byte(&mut self) -> Step<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, count: usize) -> Step<&'d [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.data.len()).ok_or("it ends early")?;
        let bytes = &self.data[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many as were taken"))
    }

    fn text(&mut self, width: usize) -> Step<()> {
        let bytes = self.take(width)?;
        let length = bytes.iter().rev().fold(0_usize, |length, &byte| length << 8 | usize::from(byte));
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Value::String(text))
    }

    /// An integer of up to 8 bytes, little-endian, two's complement.
    fn long(&mut self) -> Step<()> {
        let width = usize::from(self.byte()?);
        let bytes = self.take(width)?;
        if width > 8 {
            return Err("an integer is longer than 64 bits".to_owned());
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut all = [if negative { 0xff } else { 0 }; 8];
        all[..width].copy_from_slice(bytes);
        self.push(i64::from_le_bytes(all).into())
    }

    fn push(&mut self, value: Value) -> Step<()> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err("it holds too many values".to_owned());
        }
        self.stack.push(Item::Value(value));
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        match self.stack.pop() {
            Some(Item::Value(value)) => Ok(value),
            Some(Item::Mark) | None => Err("a value is missing".to_owned()),
        }
    }

    fn pop_to_mark(&mut self) -> Step<Vec<Value>> {
        let mark =
            self.stack.iter().rposition(|item| matches!(item, Item::Mark)).ok_or("a mark is missing")?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values
            .into_iter()
            .filter_map(|item| if let Item::Value(value) = item { Some(value) } else { None })
            .collect())
    }

    fn top(&mut self) -> Step<&mut Value> {
        match self.stack.last_mut() {
            Some(Item::Value(value)) => Ok(value),
            Some(Item::Mark) | None => Err("a value is missing".to_owned()),
        }
    }

    fn append(&mut self) -> Step<()> {
        let value = self.pop()?;
        self.extend(vec![value])
    }

    fn appends(&mut self) -> Step<()> {
        let values = self.pop_to_mark()?;
        self.extend(values)
    }

    fn extend(&mut self, values: Vec<Value>) -> Step<()> {
        if values.iter().any(|value| depth(value) > DEEPEST) {
            return Err("it is nested too deeply".to_owned());
        }
        match self.top()? {
            Value::Array(list) => list.extend(values),
            _ => return Err("something is appended to what is no list".to_owned()),
        }
        Ok(())
    }

    /// Puts pairs into a dictionary: one, or all behind the mark.
    fn set_items(&mut self, pairs: usize) -> Step<()> {
        let values = if pairs == 1 {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.pop_to_mark()?
        };
        if values.iter().any(|value| depth(value) > DEEPEST) {
            return Err("it is nested too deeply".to_owned());
        }
        let Value::Object(object) = self.top()? else {
            return Err("an item is set in what is no dictionary".to_owned());
        };
        let mut values = values.into_iter();
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            let key = if let Value::String(text) = key { text } else { key.to_string() };
            object.insert(key, value);
        }
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Step<()> {
        let mut values = (0..count).map(|_| self.pop()).collect::<Step<Vec<Value>>>()?;
        values.reverse();
        self.push(Value::Array(values))
    }

    /// Remembers the top. Containers are remembered as they are now: a dump never refers to one that it still fills.
    fn put(&mut self, slot: usize) -> Step<()> {
        if slot > MOST_VALUES.min(self.data.len()) {
            return Err("it remembers too much".to_owned());
        }
        let value = match self.top()? {
            Value::Array(list) if !list.is_empty() => Value::Null,
            Value::Object(object) if !object.is_empty() => Value::Null,
            value => value.clone(),
        };
        if self.memo.len() <= slot {
            self.memo.resize(slot + 1, None);
        }
        self.memo[slot] = Some(value);
        Ok(())
    }

    fn get(&mut self, slot: usize) -> Step<()> {
        let value = self.memo.get(slot).cloned().flatten().ok_or("it refers to what it never remembered")?;
        self.push(value)
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(object) => 1 + object.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_data_of_protocol_2_is_read() {
        // pickle.dumps({"a": [1, -2, 300, 2**40, None, True, 1.5], "b": ("x",)}, protocol=2)
        let data = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM\x2c\x01\x8a\x06\x00\x00\x00\x00\x00\x01N\x88G?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04\x85q\x05u.";
        let value = read(data, "dump").unwrap();
        assert_eq!(value, serde_json::json!({"a": [1, -2, 300, 1_i64 << 40, null, true, 1.5], "b": ["x"]}));
    }

    #[test]
    fn a_pickle_that_would_execute_something_is_refused() {
        let error = read(b"cos\nsystem\n(S'true'\ntR.", "evil").unwrap_err();
        assert_eq!(error.code, Code::BAD_DUMP);
        assert!(error.cause.unwrap().contains("refused"));
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        base::testing::cases(500, |u| {
            let bytes: Vec<u8> = u.arbitrary()?;
            let _ = read(&bytes, "noise");
            Ok(())
        });
    }
}
